"""What one call adds to the memory that was allocated before it, at its peak, and what that is made of."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import profile, record_function

from bench.measure import dispatch

if TYPE_CHECKING:
    from torch import Tensor

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
    """One call under the profiler: where its output lay, what it weighed, ran and took.

    ``left_bytes``: what it holds more than before, once its result is freed.
    """

    output_address: int
    weight: Weight
    left_bytes: int
    dispatched: list[str]
    seconds: float


def weigh_cpu(call: Call, *, collect: bool = False) -> Profiled:
    """Run ``call`` once, forward included, and read the allocator's own events.

    They see the scratch of kernels, which tracking at the dispatcher misses, and what is freed at once. They do not
    see what a library takes from the system behind torch's back, nor allocations of threads that the variant starts.
    ``collect``: what lies in reference cycles is freed, too, before it is seen what is left.
    """
    start = perf_counter()
    with torch.set_grad_enabled(call.differentiates), profile(profile_memory=True, acc_events=False) as profiled:
        output = call.forward()
        with record_function(dispatch.MARK):
            pass
        if call.differentiates:
            call.backward(output)
        seconds = perf_counter() - start
        address, output_bytes = _place(output)
        del output
        if collect:
            gc.collect()
    events = profiled.kineto_results.events()
    peak, held, left = _course(events)
    weight = Weight.of(peak, output=output_bytes, held=held if call.differentiates else None)
    return Profiled(address, weight, left, dispatch.names(events), seconds)


def _place(output: Tensor) -> tuple[int, int]:
    """Address and size in bytes of what holds the output."""
    storage = output.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _course(events: Iterable[Any]) -> tuple[int, int, int]:
    """Highest running sum of the allocation events, the sum at the mark, and the sum at the end."""
    allocated = peak = held = 0
    for event in events:
        match event.name():
            case dispatch.MEMORY_EVENT:
                allocated += event.nbytes()
                peak = max(peak, allocated)
            case dispatch.MARK:
                held = allocated
    return peak, held, allocated


def weigh_cuda(call: Call, runtime: Runtime, *, collect: bool = False) -> Profiled:
    """Run ``call`` once, forward included, and ask the caching allocator; the profiler tells which kernels ran.

    ``reserved_bytes`` is what the allocator took from the device during the call, from an empty cache. ``collect`` as
    for :func:`weigh_cpu`.
    """
    runtime.reset_peaks()
    allocated, reserved = runtime.allocated_bytes(), runtime.reserved_bytes()
    start = perf_counter()
    with torch.set_grad_enabled(call.differentiates), profile(use_device="cuda", acc_events=False) as profiled:
        output = call.forward()
        held = runtime.allocated_bytes() - allocated
        if call.differentiates:
            call.backward(output)
        runtime.synchronize()
        seconds = perf_counter() - start
    peak = runtime.peak_allocated_bytes() - allocated
    address, output_bytes = _place(output)
    del output
    if collect:
        gc.collect()
    left = runtime.allocated_bytes() - allocated
    weight = Weight.of(
        peak,
        output=output_bytes,
        held=held if call.differentiates else None,
        reserved=runtime.peak_reserved_bytes() - reserved,
    )
    events = sorted(profiled.kineto_results.events(), key=lambda event: event.start_ns())
    return Profiled(address, weight, left, dispatch.names(events), seconds)
