"""How long torch.compile has worked, what it made, and how often it found its work already done on disk."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compilation:
    """Since the last :func:`restart`. ``graph_breaks``: where code had to be left to Python."""

    seconds: float = 0.0
    cache_hits: int = 0
    graphs: int = 0
    graph_breaks: int = 0


def restart() -> None:
    """Count from now on. The compiler's own counters start anew: a variant that resets the compiler does the same."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.cumulative_time_spent_ns.clear()
        dynamo.counters.clear()


def so_far() -> Compilation:
    """What the compiler has counted; nothing if it was never imported."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return Compilation()
    return Compilation(
        seconds=float(dynamo.calculate_time_spent()["total_wall_time"]),
        cache_hits=int(dynamo.counters["inductor"]["fxgraph_cache_hit"]),
        graphs=int(dynamo.counters["stats"]["unique_graphs"]),
        graph_breaks=sum(dynamo.counters["graph_break"].values()),
    )


def again() -> list[str]:
    """A note, where something was compiled while it should only have been timed."""
    seconds = so_far().seconds
    return [f"compiled again for {seconds:.2g} s while it was timed"] if seconds else []
