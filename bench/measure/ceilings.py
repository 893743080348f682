"""What this machine can do at best, measured in the same run and on the same threads: the roof of the roofline.

A ceiling is the best of several repetitions, not their median: a fraction of it must not exceed one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import torch

_MATMUL_SECONDS = 0.02
_FAR_TOO_SLOW_SECONDS = 0.2
_SMALLEST_SIDE, _ENOUGH_SIDE, _LARGEST_SIDE = 128, 1024, 8192
_REPETITIONS = 5
_REPETITION_SECONDS = 1e-3

# Main memory, and sizes that a cache may hold, in bytes read and written by one copy. On CUDA `seconds` are with a
# cleared cache, and a small copy would measure its launch.
_COPY_BYTES = 256 * 1024**2
_CACHED_COPY_BYTES = tuple(2**power for power in range(18, 27, 2))


def measure_ceilings(device: str, dtypes: Sequence[str]) -> dict[str, float]:
    """Operations and bytes per second: ``matmul_flops_per_second:DTYPE``, ``copy_bytes_per_second``.

    ``copy_bytes_per_second`` is that of main memory; with ``:SIZE``, that of a copy which moves SIZE bytes, in a cache
    if it fits; on a CPU only. Both bytes read and bytes written count. Takes about a second, and one more per dtype.
    """
    sided = {f"matmul_flops_per_second:{dtype}": _matmul_rate(device, dtype) for dtype in dtypes}
    cached = () if device.startswith("cuda") else _CACHED_COPY_BYTES
    sized = {f"copy_bytes_per_second:{size}": _copy_rate(device, size) for size in cached}
    return {**sided, "copy_bytes_per_second": _copy_rate(device, _COPY_BYTES), **sized}


def _matmul_rate(device: str, dtype: str) -> float:
    """Of square products, each side twice the last, up to one that takes 20 ms; the best rate of all."""
    best, side = 0.0, _SMALLEST_SIDE
    while True:
        left, right, product = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(3))
        seconds = _quickest(device, partial(torch.mm, left, right, out=product))
        best = max(best, 2 * side**3 / seconds)
        # a small product takes 20 ms only while another process has the core: it says nothing about larger ones
        enough = _MATMUL_SECONDS if side >= _ENOUGH_SIDE else _FAR_TOO_SLOW_SECONDS
        if seconds >= enough or side >= _LARGEST_SIDE:
            return best
        side *= 2


def _copy_rate(device: str, moved_bytes: int) -> float:
    source = torch.ones(moved_bytes // 2, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return moved_bytes / _quickest(device, lambda: target.copy_(source))


def _quickest(device: str, call: Callable[[], object]) -> float:
    """Seconds of a call in the quickest of some repetitions, each a millisecond of calls at least."""
    first = _seconds(device, call, 1)
    calls = max(1, math.ceil(_REPETITION_SECONDS / first)) if first else 1
    return min(_seconds(device, call, calls) for _ in range(_REPETITIONS))


def _seconds(device: str, call: Callable[[], object], calls: int) -> float:
    """Of one of ``calls`` in a row."""
    _wait(device)
    start = perf_counter()
    for _ in range(calls):
        call()
    _wait(device)
    return (perf_counter() - start) / calls


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
