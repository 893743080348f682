"""Time on a CUDA device: events around each call, launches queued behind a stream that is held busy.

A block queues several calls and waits once. Before each call the L2 cache is cleared (cold), or the same call has just
run (warm), or the call is replayed from a graph (cold as well). The host is then far ahead of the device, so that the
cost of launching is hidden as it is in a model that keeps the device busy. A block in which it was not is blemished.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from bench.measure.call import Call
from bench.measure.clock import Sample
from bench.measure.cuda import DISTURBING, Event, Graph, Health, Runtime

State = Literal["cold", "warm", "graph"]

BLOCK_SECONDS = 0.01
WARM_UP_SECONDS = 0.2
GRAPH_BELOW_SECONDS = 50e-6

_MOST_CALLS = 32
_FLUSH_TIMES_L2 = 2
_FIRST_HOLD_SECONDS = 0.002
_LONGEST_HOLD_SECONDS = 0.5
_HOLD_MARGIN = 2.0
_CALIBRATION_CYCLES = 1_000_000
_TWICE = 2

NOT_HIDDEN = "launches were not hidden"


@dataclass(slots=True)
class CudaClock:
    """A :class:`bench.measure.clock.Clock`. ``scatter`` gives the call on freshly allocated operands.

    ``healths`` are the driver's answers, one a block, read while the device worked. ``own_seconds`` is what the device
    spent in calls, those before a warm one included, forwards before a backward not.
    A stream holds so many launches and no more: where they do not fit, however long it is held, blocks get shorter.
    """

    scatter: Callable[[], Call]
    runtime: Runtime
    state: State = "cold"
    call_seconds: float = 0.0
    host_now: Callable[[], float] = time.perf_counter
    warm_up_seconds: float = WARM_UP_SECONDS
    own_seconds: float = 0.0
    healths: list[Health] = field(default_factory=list)
    _call: Call | None = None
    _graph: Graph | None = None
    _hold_seconds: float = _FIRST_HOLD_SECONDS
    _most_calls: int = _MOST_CALLS
    _seen_in_a_row: int = 0
    _cycles_per_second: float = math.nan
    _flush: Callable[[], object] = field(default=lambda: None)

    def __post_init__(self) -> None:
        if self.state != "warm":
            self._flush = self.runtime.scratch(_FLUSH_TIMES_L2 * self.runtime.l2_bytes()).zero_
        self._cycles_per_second = self._calibrate()

    @property
    def timer(self) -> str:
        return f"CUDA events, {self.state}"

    @property
    def last_call(self) -> Call:
        """The call that was timed last."""
        if self._call is None:
            self._call = self.scatter()
        return self._call

    def now(self) -> float:
        return self.host_now()

    def sample(self) -> Sample:
        """Time one block on a new layout; a graph keeps the layout that it was captured on."""
        if self._graph is None or self._call is None:
            self._call = self.scatter()
        calls = min(self._most_calls, max(1, round(BLOCK_SECONDS / self.call_seconds))) if self.call_seconds else 1
        with torch.set_grad_enabled(self._call.differentiates):
            run = self._graphed(self._call) if self.state == "graph" else self._direct(self._call)
            durations, hidden, health = self._time(run, calls)
        self._fit(calls, hidden=hidden)
        self.call_seconds = statistics.median(durations)
        self.own_seconds += sum(durations) * (2 if self.state == "warm" else 1)
        self.healths += [health] if health is not None else []
        return Sample(self.call_seconds, _disturbance(health) or (None if hidden else NOT_HIDDEN))

    def _fit(self, calls: int, *, hidden: bool) -> None:
        """Where launches were seen twice in a row, a longer hold was no help: the next block gets half the calls."""
        self._seen_in_a_row = 0 if hidden else self._seen_in_a_row + 1
        if self._seen_in_a_row >= _TWICE:
            self._most_calls = max(1, calls // 2)

    def _direct(self, call: Call) -> Callable[[Event, Event], None]:
        """Queue one call between two events."""
        timed, touch = call.timed(), call.touch()

        def run(start: Event, stop: Event) -> None:
            next(touch)
            if self.state == "warm":
                timed(call.prepare())
                next(touch)  # it must not be the call that is timed: that one sees numbers of its own
            prepared = call.prepare()
            self._flush()
            start.record()
            timed(prepared)
            stop.record()

        return run

    def _graphed(self, call: Call) -> Callable[[Event, Event], None]:
        """Queue one replay between two events."""
        if self._graph is None:
            timed = call.timed()
            timed(None)  # whatever is made at a first call is made outside the graph
            self.runtime.synchronize()
            self._graph = self.runtime.capture(lambda: timed(None))
        graph = self._graph

        def run(start: Event, stop: Event) -> None:
            self._flush()
            start.record()
            graph.replay()
            stop.record()

        return run

    def _time(self, run: Callable[[Event, Event], None], calls: int) -> tuple[list[float], bool, Health | None]:
        """Seconds of each call, whether all were queued before the stream was let go, and the driver's answer."""
        pairs = [(self.runtime.event(), self.runtime.event()) for _ in range(calls)]
        gate = self.runtime.event()
        self.runtime.synchronize()
        began = self.host_now()
        self.runtime.hold(int(self._hold_seconds * self._cycles_per_second))
        gate.record()
        for start, stop in pairs:
            run(start, stop)
        hidden = not gate.query()
        queueing_seconds = self.host_now() - began
        health = self.runtime.health()
        self.runtime.synchronize()
        self._hold_seconds = min(_LONGEST_HOLD_SECONDS, max(_HOLD_MARGIN * queueing_seconds, _FIRST_HOLD_SECONDS))
        return [start.elapsed_time(stop) * 1e-3 for start, stop in pairs], hidden, health

    def _calibrate(self) -> float:
        """Cycles per second of the kernel that holds the stream; the second of two, since the first one loads it."""
        for _ in range(2):
            start, stop = self.runtime.event(), self.runtime.event()
            start.record()
            self.runtime.hold(_CALIBRATION_CYCLES)
            stop.record()
            self.runtime.synchronize()
        return _CALIBRATION_CYCLES / (start.elapsed_time(stop) * 1e-3)


def _disturbance(health: Health | None) -> str | None:
    """What the driver names that is an accident of the moment."""
    reasons = () if health is None else health.throttling
    return ", ".join(reason for reason in reasons if reason in DISTURBING) or None
