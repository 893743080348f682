"""Time on a CPU: blocks of about 10 ms, the median within a block, tensors at new addresses between blocks.

The collector is off while a call is timed. Every call is timed alone, its result is freed under the clock, as in a
plain loop, and the inputs are touched before it. A block during which the kernel gave our core to another process is
blemished.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from bench.measure.call import Call
from bench.measure.clock import Sample

BLOCK_SECONDS = 0.01
PREEMPTED = "the core was given to another process"

_LAYOUT_SHARE = 0.25
_MANY = 3
_LOST = {True: 0.01, False: 0.25}  # of a block of few calls, and of many, whose median is hardly moved


def preemptions() -> int:
    """How often the kernel has taken the core away from this thread; 0 where it does not tell."""
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    except (ImportError, AttributeError):  # Windows, macOS
        return 0


@dataclass(slots=True)
class CpuClock:
    """A :class:`bench.measure.clock.Clock`. ``scatter`` gives the call on freshly allocated operands.

    ``own_seconds`` is what was spent in the attention itself, untimed forwards included.
    A new layout costs a copy of all operands: where that is more than a quarter of the time spent in calls since
    the last one, the next block keeps the layout.
    """

    scatter: Callable[[], Call]
    call_seconds: float = 0.0
    own_seconds: float = 0.0
    block_seconds: float = BLOCK_SECONDS
    now_ns: Callable[[], int] = time.perf_counter_ns
    on_core_ns: Callable[[], int] = time.thread_time_ns
    preemptions: Callable[[], int] = preemptions
    timer: str = "perf_counter, blocks of 10 ms"
    warm_up_seconds: float = 0.0
    _call: Call | None = field(default=None, init=False)
    _layout_seconds: float = field(default=0.0, init=False)
    _since_layout_seconds: float = field(default=math.inf, init=False)

    def now(self) -> float:
        return self.now_ns() * 1e-9

    def sample(self) -> Sample:
        """Time one block, on a new layout where that is cheap enough."""
        call = self._laid_out()
        calls = max(1, round(self.block_seconds / self.call_seconds)) if self.call_seconds else 1
        durations, lost = self._time(call, calls)
        self.call_seconds = statistics.median(durations) * 1e-9
        self._since_layout_seconds += sum(durations) * 1e-9
        return Sample(self.call_seconds, PREEMPTED if lost > _LOST[calls < _MANY] else None)

    @property
    def last_call(self) -> Call:
        """The call that was timed last."""
        return self._laid_out() if self._call is None else self._call

    def _laid_out(self) -> Call:
        if self._call is None or self._layout_seconds <= _LAYOUT_SHARE * self._since_layout_seconds:
            start = self.now_ns()
            self._call = self.scatter()
            self._layout_seconds = (self.now_ns() - start) * 1e-9
            self._since_layout_seconds = 0.0
        return self._call

    def _time(self, call: Call, calls: int) -> tuple[list[int], float]:
        """Nanoseconds of each call, and the share of the block for which this thread had lost its core."""
        prepare, timed, touch = call.prepare, call.timed(), call.touch()
        now, durations, preparing = self.now_ns, [], 0
        enabled = gc.isenabled()
        gc.disable()
        try:
            with torch.set_grad_enabled(call.differentiates):
                first, on_core, preempted = now(), self.on_core_ns(), self.preemptions()
                for _ in range(calls):
                    next(touch)
                    begin = now()
                    prepared = prepare()
                    start = now()
                    timed(prepared)
                    stop = now()
                    durations.append(stop - start)
                    preparing += start - begin
                    del prepared
                on_core, preempted, last = self.on_core_ns() - on_core, self.preemptions() - preempted, now()
        finally:
            if enabled:
                gc.enable()
        self.own_seconds += (sum(durations) + preparing) * 1e-9
        # a thread that waits, for another one say, is off its core as well: that belongs to the attention
        return durations, 1 - on_core / (last - first) if preempted and last > first else 0.0
