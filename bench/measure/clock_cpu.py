"""Time on a CPU: blocks of about 10 ms, the median within a block, tensors at new addresses between blocks.

The collector is off while a call is timed. Every call is timed alone, its result is freed under the clock, as in a
plain loop, and the inputs are touched before it. The first call on new addresses finds caches and page tables cold and
takes up to 0.3 ms more: it is not timed, unless it is so long that this is lost in it. A block during which the kernel
gave our core to another process is blemished.
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

PREEMPTED = "the core was given to another process"

_MANY = 3
_LOST = {True: 0.01, False: 0.25}  # of a block of few calls, and of many, whose median is hardly moved


def preemptions() -> int:
    """How often the kernel has taken the core away from this thread; 0 where it does not tell."""
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    except (ImportError, AttributeError):  # Windows, macOS
        return 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """About how long a block is, and what goes before it.

    A new layout costs a copy of all operands, and a call that is not timed where calls take less than
    ``untimed_below_seconds``. Where both are more than ``layout_share`` of the time spent in timed calls since the last
    one, the next block keeps the layout.
    """

    seconds: float
    layout_share: float
    untimed_below_seconds: float
    timer: str


ALONE = Blocks(0.01, 0.5, 0.1, "perf_counter, blocks of 10 ms after an untimed call")
# What disturbs both sides alike must last longer than a block, and both begin as cold: their ratio is what counts.
IN_TURNS = Blocks(0.002, 0.25, 0.0, "perf_counter, blocks of 2 ms")


@dataclass(slots=True)
class CpuClock:
    """A :class:`bench.measure.clock.Clock`. ``scatter`` gives the call on freshly allocated operands.

    ``call_seconds`` is about what a call takes, 0 where nothing is known. ``own_seconds`` is what was spent in the
    attention itself, calls and forwards that are not timed included.
    """

    scatter: Callable[[], Call]
    call_seconds: float = 0.0
    blocks: Blocks = ALONE
    own_seconds: float = 0.0
    now_ns: Callable[[], int] = time.perf_counter_ns
    on_core_ns: Callable[[], int] = time.thread_time_ns
    preemptions: Callable[[], int] = preemptions
    warm_up_seconds: float = 0.0
    _call: Call | None = field(default=None, init=False)
    _layout_seconds: float = field(default=0.0, init=False)
    _since_layout_seconds: float = field(default=math.inf, init=False)

    @property
    def timer(self) -> str:
        return self.blocks.timer

    def now(self) -> float:
        return self.now_ns() * 1e-9

    def sample(self) -> Sample:
        """Time one block, on a new layout where that is cheap enough."""
        call = self._laid_out()
        calls = max(1, round(self.blocks.seconds / self.call_seconds)) if self.call_seconds else 1
        durations, lost = self._time(call, calls)
        self.call_seconds = statistics.median(durations) * 1e-9
        self._since_layout_seconds += sum(durations) * 1e-9
        return Sample(self.call_seconds, PREEMPTED if lost > _LOST[calls < _MANY] else None)

    @property
    def last_call(self) -> Call:
        """The call that was timed last."""
        return self._laid_out() if self._call is None else self._call

    def _laid_out(self) -> Call:
        if self._call is None or self._layout_seconds <= self.blocks.layout_share * self._since_layout_seconds:
            start = self.now_ns()
            self._call = self.scatter()
            if self.call_seconds < self.blocks.untimed_below_seconds:
                self._time(self._call, 1)
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
