"""Measures cells in worker processes, one after the other, so that nothing an attention does ends the sweep.

A worker serves one variant in one replicate. One that is lost costs the case that it was measuring; a fresh one goes
on with the rest.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bench.errors import WrongUsageError
from bench.record import Failed, Outcome, Settings
from bench.sweep import messages, plan
from bench.sweep.plan import Cell
from bench.sweep.suite import DEFAULT_TIMEOUT_SECONDS
from bench.sweep.supervisor import ENGINE, LostError, Supervised

_START_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Where and how cases are measured. ``files``: of variants that are not built in, where they are."""

    device: str
    settings: Settings
    files: Mapping[str, str | None]
    ceilings: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    check_only: bool = False
    engine: str = ENGINE

    @property
    def timeout_seconds(self) -> float:
        return self.settings.timeout_seconds or DEFAULT_TIMEOUT_SECONDS

    def worker(self) -> Supervised:
        return Supervised(engine=self.engine, threads=self.settings.threads, memory_bytes=self.memory_bytes)


@dataclass(slots=True)
class Spent:
    """Where wall time went: ``worker_seconds`` starting and ending workers, ``stage_seconds`` inside cases.

    ``trial_seconds`` are those of trials with their workers.
    """

    worker_seconds: float = 0.0
    stage_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    workers: int = 0
    trial_seconds: float = 0.0


def outcomes(
    cells: Iterable[Cell],
    station: Station,
    *,
    seed: str,
    spent: Spent,
    on_stage: Callable[[Cell, str], None] = lambda *_: None,
) -> Generator[tuple[Cell, Outcome], None, None]:
    """What became of each cell, as soon as that is known. ``seed`` shuffles them.

    The next cell begins when the next outcome is asked for: by then this one can be on disk. Closing the iterator
    ends the worker.
    """
    for group in plan.passes(cells, seed):
        waiting = iter(group)
        for cell in waiting:
            yield from _with_one_worker(cell, waiting, station, spent, on_stage)


def _with_one_worker(
    first: Cell,
    waiting: Iterator[Cell],
    station: Station,
    spent: Spent,
    on_stage: Callable[[Cell, str], None],
) -> Iterator[tuple[Cell, Outcome]]:
    """Outcomes of ``first`` and of those waiting, until the worker is lost or should retire."""
    started = time.monotonic()
    spent.workers += 1
    with station.worker() as worker:
        on_stage(first, "start")
        try:
            _prepare(worker, first.case.variant, station)
        except (LostError, WrongUsageError) as error:  # the others would fare no better
            end: Outcome = error.outcome if isinstance(error, LostError) else Failed(stage="start", message=str(error))
            yield from ((cell, end) for cell in [first, *waiting])
            return
        finally:
            spent.worker_seconds += time.monotonic() - started
        cell: Cell | None = first
        while cell is not None:
            outcome, retire = _measured(worker, cell, station, spent, on_stage)
            yield cell, outcome
            cell = None if retire else next(waiting, None)
        ended = time.monotonic()
    spent.worker_seconds += time.monotonic() - ended


def _prepare(worker: Supervised, variant: str, station: Station) -> None:
    request = messages.Prepare(
        variant=variant,
        file=station.files.get(variant),
        device=station.device,
        settings=station.settings,
        memory_bytes=station.memory_bytes,
    )
    worker.ask(request, timeout_seconds=_START_SECONDS)


def _measured(
    worker: Supervised,
    cell: Cell,
    station: Station,
    spent: Spent,
    on_stage: Callable[[Cell, str], None],
) -> tuple[Outcome, bool]:
    """What became of one cell, and whether its worker should measure nothing more."""
    request = messages.Measure(case=cell.case, ceilings=dict(station.ceilings), check_only=station.check_only)
    started = time.monotonic()
    stage = "start"

    def entered(now: str) -> None:
        nonlocal stage
        stage = now
        on_stage(cell, now)

    try:
        reply = worker.ask(request, timeout_seconds=station.timeout_seconds, on_stage=entered)
    except LostError as lost:
        spent.stage_seconds[stage] += time.monotonic() - started
        return lost.outcome, True
    assert isinstance(reply, messages.Done)  # noqa: S101  # a worker of ours answers what it is asked
    for name, seconds in reply.seconds.items():
        spent.stage_seconds[name] += seconds
    return reply.outcome, reply.retire
