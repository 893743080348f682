"""How much identical code differs between processes here: the floor under every difference that can be seen.

One case in several replicates, through the same workers, with the same environment and pinning, as any sweep.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable

from bench.machine.doctor import NoiseFloor
from bench.record import Case, Measured, Settings
from bench.sweep import supervisor
from bench.sweep.plan import Cell
from bench.sweep.stations import Spent, Station, outcomes
from variants._contract import Workload

VARIANT = "sdpa_auto"
LENGTH = 512
PROCESS_SECONDS = 1.0
DEADLINE_SECONDS = 40.0

_FEWEST = 2
_TIMEOUT_SECONDS = 15.0


def noise_floor(
    *, device: str, threads: int, processes: int, now: Callable[[], float] = time.monotonic
) -> NoiseFloor | None:
    """One process after the other; no further one after 40 seconds. None with fewer than two results."""
    settings = Settings(threads=threads, time_budget_seconds=PROCESS_SECONDS, timeout_seconds=_TIMEOUT_SECONDS)
    case = Case(variant=VARIANT, workload=Workload(query_length=LENGTH, key_length=LENGTH, device=device))
    cells = [Cell(case, process) for process in range(processes)]
    station = Station(device=device, settings=settings, files={}, engine=supervisor.ENGINE)
    deadline = now() + DEADLINE_SECONDS
    medians: list[float] = []
    with contextlib.closing(outcomes(cells, station, seed="noise", spent=Spent())) as measured:
        for _, outcome in measured:
            if isinstance(outcome, Measured):
                medians.append(statistics.median(outcome.seconds))
            if now() >= deadline:
                break
    return NoiseFloor(medians) if len(medians) >= _FEWEST else None
