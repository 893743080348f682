"""How much main memory is left: to the system, to the control groups that this process is in, and by its own limits.

Files that the system keeps in memory because nothing else wanted it, the inactive page cache, are room: they are
dropped as soon as something does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


class Room(NamedTuple):
    """Bytes of memory: all that there is, and what is left of it."""

    total_bytes: int
    left_bytes: int


class _Version(NamedTuple):
    """Where a version of control groups says what."""

    folder: str
    limit: str
    used: str
    droppable: tuple[str, ...]


_VERSIONS = (
    _Version("", "memory.max", "memory.current", ("inactive_file",)),
    # version 1 beside version 2, or alone; `total_` counts groups below as well, as the usage does
    _Version("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "inactive_file")),
)


def available_bytes() -> int:
    """Main memory that this process may still take."""
    return max(0, min([tightest().left_bytes, *limit_rooms()]))


def tightest() -> Room:
    """The system, or the control group of this process that has less left than it."""
    memory = psutil.virtual_memory()
    system = Room(int(memory.total), int(memory.available))
    return min([system, *group_rooms()], key=lambda room: room.left_bytes)


def group_rooms(groups: Path = _GROUPS, membership: Path = _MEMBERSHIP) -> list[Room]:
    """Of each control group with a limit that this process is in, version 2 or 1, and of those around it.

    In a container the group is mounted as if it were the outermost one, whatever its path is called outside.
    """
    rooms = []
    for version in _VERSIONS:
        paths = _paths(membership, version.folder)
        for folder in dict.fromkeys(groups / version.folder / path for path in paths):
            try:
                limit = int((folder / version.limit).read_text(encoding="ascii"))
                used = int((folder / version.used).read_text(encoding="ascii"))
            except (OSError, ValueError):  # no such file, or "max"
                continue
            rooms.append(Room(limit, limit - used + _droppable_bytes(folder, version.droppable)))
    return rooms


def _paths(membership: Path, controller: str) -> Iterator[Path]:
    """The group of this process for a controller (``""`` in version 2), and every one around it, as relative paths."""
    yield Path()
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            own = Path(path.lstrip("/"))
            yield from (own, *own.parents)


def _droppable_bytes(folder: Path, names: tuple[str, ...]) -> int:
    """The first of the figures in ``memory.stat`` that is there."""
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    figures = dict(line.split(" ", 1) for line in lines if " " in line)
    return next((int(figures[name]) for name in names if name in figures), 0)


def limit_rooms() -> list[int]:
    """What the limits on address space and on data leave; empty where there are none."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    memory = psutil.Process().memory_info()
    used = {resource.RLIMIT_AS: memory.vms, resource.RLIMIT_DATA: getattr(memory, "data", 0)}
    limits = {kind: resource.getrlimit(kind)[0] for kind in used}
    return [soft - used[kind] for kind, soft in limits.items() if soft != resource.RLIM_INFINITY]
