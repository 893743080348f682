"""What one call adds to the memory that was allocated before it, at its peak, and what that is made of."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import profile, record_function

from bench.measure import dispatch

if TYPE_CHECKING:
    from bench.measure.call import Call
    from bench.measure.cuda import Runtime


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes at the peak of a call, and their parts.

    ``output_bytes``: the attention output. ``saved_bytes``: what else is held after the forward, for the backward
    (None in ``fwd``). ``workspace_bytes``: the rest of the peak; gradients are in it. ``reserved_bytes``: what a
    caching allocator took from the device (None on a CPU).
    """

    peak_bytes: int
    output_bytes: int
    saved_bytes: int | None
    workspace_bytes: int
    reserved_bytes: int | None = None

    @staticmethod
    def of(peak: int, *, output: int, held: int | None, reserved: int | None = None) -> Weight:
        """From the peak, the output's size and what was held between forward and backward."""
        saved = None if held is None else max(0, held - output)
        return Weight(peak, output, saved, max(0, peak - output - (saved or 0)), reserved)


@dataclass(frozen=True, slots=True)
class Profiled:
    """One call under the profiler: where its output lay, what it weighed, ran and took."""

    output_address: int
    weight: Weight
    dispatched: list[str]
    seconds: float


def weigh_cpu(call: Call) -> Profiled:
    """Run ``call`` once, forward included, and read the allocator's own events.

    They see the scratch of kernels, which tracking at the dispatcher misses, and what is freed at once. They do not
    see what a library takes from the system behind torch's back, nor allocations of threads that the variant starts.
    """
    start = time.perf_counter()
    with torch.set_grad_enabled(call.differentiates), profile(profile_memory=True, acc_events=False) as profiled:
        output = call.forward()
        with record_function(dispatch.MARK):
            pass
        if call.differentiates:
            call.backward(output)
        seconds = time.perf_counter() - start
    storage = output.untyped_storage()
    events = profiled.kineto_results.events()
    peak, held = _course(events)
    weight = Weight.of(peak, output=storage.nbytes(), held=held if call.differentiates else None)
    return Profiled(storage.data_ptr(), weight, dispatch.names(events), seconds)


def _course(events: Iterable[Any]) -> tuple[int, int]:
    """Highest running sum of the allocation events, and the sum at the mark."""
    allocated = peak = held = 0
    for event in events:
        match event.name():
            case dispatch.MEMORY_EVENT:
                allocated += event.nbytes()
                peak = max(peak, allocated)
            case dispatch.MARK:
                held = allocated
    return peak, held


def weigh_cuda(call: Call, runtime: Runtime) -> Profiled:
    """Run ``call`` once, forward included, and ask the caching allocator; the profiler tells which kernels ran.

    ``reserved_bytes`` is what the allocator took from the device during the call, from an empty cache.
    """
    runtime.reset_peaks()
    allocated, reserved = runtime.allocated_bytes(), runtime.reserved_bytes()
    start = time.perf_counter()
    with torch.set_grad_enabled(call.differentiates), profile(use_device="cuda", acc_events=False) as profiled:
        output = call.forward()
        held = runtime.allocated_bytes() - allocated
        if call.differentiates:
            call.backward(output)
        runtime.synchronize()
        seconds = time.perf_counter() - start
    storage = output.untyped_storage()
    weight = Weight.of(
        runtime.peak_allocated_bytes() - allocated,
        output=storage.nbytes(),
        held=held if call.differentiates else None,
        reserved=runtime.peak_reserved_bytes() - reserved,
    )
    events = sorted(profiled.kineto_results.events(), key=lambda event: event.start_ns())
    return Profiled(storage.data_ptr(), weight, dispatch.names(events), seconds)
