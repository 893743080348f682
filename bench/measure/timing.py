"""The time of a call on a device: the series that its clock gives, and what is told beside them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.measure.call import Call
from bench.measure.clock import DEFAULT_BUDGET_SECONDS, collect
from bench.measure.clock_cpu import CpuClock
from bench.measure.clock_cuda import GRAPH_BELOW_SECONDS, CudaClock
from bench.measure.conditions import Watch
from bench.measure.cuda import Health, Runtime

# Of a case's budget on CUDA; a series that settles early leaves the rest unspent.
_COLD, _WARM, _GRAPH = 0.6, 0.25, 0.15


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per block, as in :class:`bench.record.Measured`, and the call that was timed last.

    ``own_seconds`` is what timing spent in the attention's own calls, warm-up included, and on a CPU untimed forwards.
    """

    seconds: list[float]
    timer: str
    settled: bool
    dropped_share: float
    last_call: Call
    own_seconds: float
    warm: list[float] | None = None
    graph: list[float] | None = None
    conditions: dict[str, float | int | str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def time_on_cpu(scatter: Callable[[], Call], *, call_seconds: float, budget_seconds: float | None) -> Timing:
    """``call_seconds`` is about what a call takes."""
    watch = Watch.start()
    clock = CpuClock(scatter, call_seconds=call_seconds)
    series = collect(clock, budget_seconds=budget_seconds, call_seconds=call_seconds)
    return Timing(
        series.seconds,
        clock.timer,
        series.settled,
        series.dropped_share,
        clock.last_call,
        clock.own_seconds,
        conditions=watch.report(),
        notes=series.notes,
    )


def time_on_cuda(
    scatter: Callable[[], Call], runtime: Runtime, *, call_seconds: float, budget_seconds: float | None
) -> Timing:
    """With a cleared L2 cache, with a warm one, and below 50 µs replayed from a CUDA graph, if it can be captured."""
    watch = Watch.start()
    budget = DEFAULT_BUDGET_SECONDS if budget_seconds is None else budget_seconds
    cold = CudaClock(scatter, runtime)
    series = collect(cold, budget_seconds=_COLD * budget, call_seconds=call_seconds)
    warm = CudaClock(scatter, runtime, "warm", call_seconds=cold.call_seconds, warm_up_seconds=0)
    warm_series = collect(warm, budget_seconds=_WARM * budget, call_seconds=call_seconds)
    notes = [*series.notes, *(f"warm: {note}" for note in warm_series.notes)]
    replayed, own_seconds = None, cold.own_seconds + warm.own_seconds
    if statistics.median(series.seconds) < GRAPH_BELOW_SECONDS:
        replayed, replaying_seconds, graph_notes = _replayed(cold, runtime, budget_seconds=_GRAPH * budget)
        notes, own_seconds = notes + graph_notes, own_seconds + replaying_seconds
    healths = cold.healths + warm.healths
    return Timing(
        series.seconds,
        cold.timer,
        series.settled,
        series.dropped_share,
        cold.last_call,
        own_seconds,
        warm=warm_series.seconds,
        graph=replayed,
        conditions={**watch.report(), **describe(healths)},
        notes=notes if healths else [*notes, "the driver does not tell clocks and throttling"],
    )


def _replayed(
    cold: CudaClock, runtime: Runtime, *, budget_seconds: float
) -> tuple[list[float] | None, float, list[str]]:
    """A series of graph replays, what it spent in calls, and notes; no series where there is a reason against it."""
    if cold.last_call.mode == "bwd":
        return None, 0.0, ["no CUDA graph: a backward is not captured without its forward"]
    clock = CudaClock(cold.scatter, runtime, "graph", call_seconds=cold.call_seconds, warm_up_seconds=0)
    try:
        series = collect(clock, budget_seconds=budget_seconds)
    except RuntimeError as error:
        return None, clock.own_seconds, [f"no CUDA graph: {type(error).__name__}: {str(error).partition(chr(10))[0]}"]
    return series.seconds, clock.own_seconds, [f"graph: {note}" for note in series.notes]


def describe(healths: Sequence[Health]) -> dict[str, float | int | str | None]:
    """Medians of the clocks, the highest temperature, and every reason for throttling that was given."""
    if not healths:
        return {}
    reasons = sorted({reason for health in healths for reason in health.throttling})
    return {
        "sm_mhz": statistics.median(health.sm_mhz for health in healths),
        "memory_mhz": statistics.median(health.memory_mhz for health in healths),
        "celsius": max(health.celsius for health in healths),
        "throttling": ", ".join(reasons) or "none",
    }
