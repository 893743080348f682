"""Keeps a process on as many cores as it has threads: the idlest ones, and whole ones before their second threads."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil

_LOOK_SECONDS = 0.1
_TOPOLOGY = Path("/sys/devices/system/cpu")


def pin(threads: int, process_id: int = 0, chosen: Collection[int] | None = None) -> list[int] | None:
    """Pin a process (this one: 0), and the threads that it starts from now on, to ``threads`` of its processors.

    To the idlest ones, unless they are ``chosen``. None, and nothing done, where it has no more than that or the
    system has no such thing.
    """
    found = idlest(threads) if chosen is None else list(chosen)
    if found is not None:
        os.sched_setaffinity(process_id, found)
    return found


def idlest(threads: int) -> list[int] | None:
    """The processors to take now, of those that this process may use; None where there is nothing to choose."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    usable = os.sched_getaffinity(0)
    if threads >= len(usable):
        return None
    busy = dict(enumerate(psutil.cpu_percent(interval=_LOOK_SECONDS, percpu=True)))
    return choose(threads, busy={cpu: busy.get(cpu, 0.0) for cpu in usable}, siblings=_siblings(usable))


def choose(threads: int, *, busy: Mapping[int, float], siblings: Mapping[int, Collection[int]]) -> list[int]:
    """The processors to take. ``busy``: percent by processor; ``siblings``: itself and those that share its core.

    A core counts as busy as its busiest processor. All cores get one thread before any gets a second one.
    """
    cores = {tuple(sorted(cpu for cpu in siblings[cpu] if cpu in busy)) for cpu in busy}
    ordered = sorted(cores, key=lambda core: (max(busy[cpu] for cpu in core), core))
    by_turn = sorted((turn, place, cpu) for place, core in enumerate(ordered) for turn, cpu in enumerate(core))
    return sorted(cpu for *_, cpu in by_turn[:threads])


def _siblings(cpus: Collection[int]) -> dict[int, set[int]]:
    return {cpu: _parse(_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list") or {cpu} for cpu in cpus}


def _parse(file: Path) -> set[int]:
    """``0,4`` or ``0-1`` as the numbers that it means; none where the system does not tell."""
    try:
        parts = [part.partition("-") for part in file.read_text(encoding="ascii").strip().split(",")]
        return {cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return set()
