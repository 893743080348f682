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

from bench.call import Call
from bench.clock import Sample

BLOCK_SECONDS = 0.01

_LAYOUT_SHARE = 0.25
_OFF_CORE = {True: 0.01, False: 0.25}  # single calls, and many, of which the median is hardly moved


@dataclass(slots=True)
class CpuClock:
    """A :class:`bench.clock.Clock`. ``scatter`` gives the call on freshly allocated operands.

    ``own_seconds`` is what was spent in the attention itself, untimed forwards included.
    A new layout costs a copy of all operands: where that is more than a quarter of the time spent in calls since
    the last one, the next block keeps the layout.
    """

    scatter: Callable[[], Call]
    call_seconds: float = 0.0
    own_seconds: float = 0.0
    now_ns: Callable[[], int] = time.perf_counter_ns
    on_core_ns: Callable[[], int] = time.thread_time_ns
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
        calls = max(1, round(BLOCK_SECONDS / self.call_seconds)) if self.call_seconds else 1
        durations, on_core = self._time(call, calls)
        self.call_seconds = statistics.median(durations) * 1e-9
        total = sum(durations)
        self._since_layout_seconds += total * 1e-9
        off_core = 1 - on_core / total if total else 0.0
        blemish = "the core was given to another process" if off_core > _OFF_CORE[calls < 3] else None  # noqa: PLR2004
        return Sample(self.call_seconds, blemish)

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

    def _time(self, call: Call, calls: int) -> tuple[list[int], int]:
        """Nanoseconds of each call, and those that this thread spent on a core during them."""
        prepare, timed, touch = call.prepare, call.timed(), call.touch()
        now, on_core_now = self.now_ns, self.on_core_ns
        durations, on_core, preparing = [], 0, 0
        enabled = gc.isenabled()
        gc.disable()
        try:
            with torch.set_grad_enabled(call.differentiates):
                for _ in range(calls):
                    next(touch)
                    begin = now()
                    prepared = prepare()
                    preparing += now() - begin
                    before = on_core_now()
                    start = now()
                    timed(prepared)
                    stop = now()
                    on_core += on_core_now() - before
                    durations.append(stop - start)
                    del prepared
        finally:
            if enabled:
                gc.enable()
        self.own_seconds += (sum(durations) + preparing) * 1e-9
        return durations, on_core
