"""The peak memory of a call before it runs, from the same call on small problems.

Once blocks and chunks are full, memory is affine in the batch and a polynomial of second degree in the length: so
three shorter lengths give the polynomial, and two smaller batches the slope in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.measure.call import Call, Operands
from bench.traffic import item_bytes, least_traffic_bytes

if TYPE_CHECKING:
    from bench.measure.memory import Profiled
    from bench.measure.oracle import Problem
    from variants._contract import Variant, Workload


# Sixteenths of the length, by the least length that they are for: no probe is shorter than 1024, below which chunks,
# buckets and blocks are not yet full and memory grows by another law.
_SIXTEENTHS = ((16384, (1, 2, 4)), (8192, (2, 4, 8)), (4096, (4, 8, 12)))
_LENGTH_STEP = 128
_WORTH_ROUNDING = 1024
# A batch of one is a case of its own, in which tensors need no copy and loops hold no item from before; and a batch
# whose inputs and outputs take this much fills what a variant works on at a time.
_FEWEST_ITEMS = 2
_FILLING_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}

_CAUTION = 4
_SCORES = {"fwd": 4, "bwd": 8, "fwd_bwd": 8}
_TIMES_TRAFFIC = 64


def could_matter(variant: Variant, workload: Workload, available_bytes: int) -> bool:
    """Whether a generous guess of the peak exceeds a quarter of what is available: only then are probes worth it.

    The guess is 64 times the inputs and outputs, and N×N matrices for a variant that does not claim linear memory.
    """
    guess = _TIMES_TRAFFIC * least_traffic_bytes(replace(workload, mode="fwd"))
    if variant.complexity.memory > 1:
        pairs = workload.batch * workload.heads * workload.query_length * workload.key_length
        guess += _SCORES[workload.mode] * pairs * max(4, item_bytes(workload.dtype))
    return _CAUTION * guess > available_bytes


def predicted_peak_bytes(problem: Problem, weigh: Callable[[Call], Profiled]) -> int | None:
    """The peak of a call, from calls on smaller problems; None where those are impossible for this variant."""

    def peak(workload: Workload) -> int:
        operands = Operands.of(workload).fresh(differentiable=workload.mode != "fwd")
        attend = problem.variant.build(workload, problem.parameters)
        return weigh(Call(attend, operands, workload.mode)).weight.peak_bytes

    try:
        return predict(problem.workload, peak)
    except Exception:  # noqa: BLE001  # then there is no prediction, and the case itself will tell what is wrong
        return None


def predict(workload: Workload, peak: Callable[[Workload], int]) -> int | None:
    """What ``peak`` would give for ``workload``, from smaller ones; None if there is nothing to make smaller."""
    lengths = _lengths(workload)
    batches = _batches(replace(workload, query_length=lengths[0][0], key_length=lengths[0][1]))
    if len(batches) * len(lengths) == 1:
        return None
    peaks = [_at_full_length(replace(workload, batch=batch), lengths, peak) for batch in batches]
    slope = (peaks[-1] - peaks[0]) / max(1, batches[-1] - batches[0])
    return round(peaks[-1] + slope * (workload.batch - batches[-1]))


def _batches(workload: Workload) -> list[int]:
    """Two smaller batches, the larger one at most half the real one where that is enough; or the real one."""
    if workload.batch <= _FEWEST_ITEMS + 1:
        return [workload.batch]
    item = least_traffic_bytes(replace(workload, batch=1, mode="fwd"))
    filling = -(-_FILLING_BYTES[workload.device.partition(":")[0]] // item)
    larger = max(_FEWEST_ITEMS + 1, min(workload.batch // 2, filling))
    return [max(_FEWEST_ITEMS, larger * 2 // 3), larger]


def _lengths(workload: Workload) -> list[tuple[int, int]]:
    """Query and key lengths of the probes: the real ones alone where they are short."""
    query, key = workload.query_length, workload.key_length
    for least, sixteenths in _SIXTEENTHS:
        if max(query, key) >= least:
            return [(_shrunk(query, share), _shrunk(key, share)) for share in sixteenths]
    return [(query, key)]


def _shrunk(length: int, sixteenths: int) -> int:
    """A multiple of 128 where that changes little, so that no probe pads more than the real length does."""
    shrunk = max(1, length * sixteenths // 16)
    return round(shrunk / _LENGTH_STEP) * _LENGTH_STEP if shrunk >= _WORTH_ROUNDING else shrunk


def _at_full_length(workload: Workload, lengths: Sequence[tuple[int, int]], peak: Callable[[Workload], int]) -> float:
    """The peak of ``workload`` from those at ``lengths``."""
    weighed = [peak(replace(workload, query_length=query, key_length=key)) for query, key in lengths]
    if len(lengths) == 1:
        return weighed[0]
    longer = 1 if workload.key_length >= workload.query_length else 0
    at = (workload.query_length, workload.key_length)[longer]
    return extrapolated([pair[longer] for pair in lengths], weighed, at)


def extrapolated(lengths: Sequence[int], peaks: Sequence[float], at: int) -> float:
    """The polynomial of second degree through three points, at a further length.

    Where the points bend downwards, which memory does not for long, the line through the last two.
    """
    (x0, x1, x2), (y0, y1, y2) = lengths, peaks
    slope = (y2 - y1) / (x2 - x1)
    curvature = (slope - (y1 - y0) / (x1 - x0)) / (x2 - x0)
    return y2 + slope * (at - x2) + max(0.0, curvature) * (at - x2) * (at - x1)
