"""What scores of other kinds than a scaled product of query and key have to say about a scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from variants._contract import Workload


def scale_obstacles(workload: Workload, why: str) -> list[str]:
    """A reason to refuse a workload that asks for a scale of its own; 1 changes nothing."""
    if workload.scale in (None, 1):
        return []
    return [f"a scale of {workload.scale:g}: {why}; leave it out"]
