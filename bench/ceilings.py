"""What this machine can do at best, measured in the same run and on the same threads: the roof of the roofline.

A ceiling is the best of several repetitions, not their median: a fraction of it must not exceed one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

_MATMUL_SECONDS = 0.02
_SMALLEST_SIDE, _ENOUGH_SIDE, _LARGEST_SIDE = 128, 1024, 8192
_REPETITIONS = 5

# Main memory, and sizes that a cache may hold, in bytes read and written by one copy.
_COPY_BYTES = 256 * 1024**2
_CACHED_COPY_BYTES = (512 * 1024, 4 * 1024**2, 32 * 1024**2)


def measure_ceilings(device: str, dtypes: Sequence[str]) -> dict[str, float]:
    """Operations and bytes per second: ``matmul_flops_per_second:DTYPE``, ``copy_bytes_per_second``.

    ``copy_bytes_per_second`` is that of main memory; with ``:SIZE``, that of a copy which moves SIZE bytes, in a cache
    if it fits. Both bytes read and bytes written count. Takes about half a second, and as much again per dtype.
    """
    sided = {f"matmul_flops_per_second:{dtype}": _matmul_rate(device, dtype) for dtype in dtypes}
    sized = {f"copy_bytes_per_second:{size}": _copy_rate(device, size) for size in _CACHED_COPY_BYTES}
    return {**sided, "copy_bytes_per_second": _copy_rate(device, _COPY_BYTES), **sized}


def _matmul_rate(device: str, dtype: str) -> float:
    """Of square products, each side twice the last, up to one that takes 20 ms; the best rate of all."""
    best, side = 0.0, _SMALLEST_SIDE
    while True:
        left, right, product = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(3))
        seconds = _quickest(device, partial(torch.mm, left, right, out=product))
        best = max(best, 2 * side**3 / seconds)
        # a small product takes 20 ms only while another process has the core: it says nothing about larger ones
        if (seconds >= _MATMUL_SECONDS and side >= _ENOUGH_SIDE) or side >= _LARGEST_SIDE:
            return best
        side *= 2


def _copy_rate(device: str, moved_bytes: int) -> float:
    source = torch.ones(moved_bytes // 2, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return moved_bytes / _quickest(device, lambda: target.copy_(source))


def _quickest(device: str, call: Callable[[], object]) -> float:
    """Seconds of the quickest of some calls."""
    call()
    return min(_seconds(device, call) for _ in range(_REPETITIONS))


def _seconds(device: str, call: Callable[[], object]) -> float:
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
