"""How much work a case is, and how much of the machine's ceiling it reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from bench.traffic import copy_bandwidth, least_traffic_bytes
from variants._pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from variants._contract import Use, Workload

# By convention the backward counts 2.5 forwards: five matrix products against two.
_HALVES = {"fwd": 2, "bwd": 5, "fwd_bwd": 7}


class Roofline(NamedTuple):
    """Share of the attainable rate, and what limits that rate."""

    fraction: float
    bound: Literal["compute", "memory"]


def useful_flops(workload: Workload) -> int:
    """Operations of the products QKᵀ and PV over the pairs that attend: the same for every variant.

    (2·D + 2·Dv) · H · pairs for the forward, pairs summed over the batch; 2.5 times that for the
    backward and 3.5 times for both, by convention.
    """
    pairs = Pattern.of(workload, "cpu").pairs
    return (workload.head_dim + workload.value_dim) * workload.heads * pairs * _HALVES[workload.mode]


def roofline(
    workload: Workload,
    uses: Collection[Use],
    *,
    issued_flops: int,
    seconds: float,
    ceilings: Mapping[str, float],
) -> Roofline | None:
    """``issued_flops`` per second against the ceiling at this arithmetic intensity; None without ceilings.

    The memory ceiling is the copy bandwidth measured on a buffer no smaller than the case's traffic, so that a
    problem that stays in the cache is held against the cache.
    """
    compute = ceilings.get(f"matmul_flops_per_second:{workload.dtype}")
    traffic = least_traffic_bytes(workload, uses)
    bandwidth = copy_bandwidth(ceilings, traffic)
    if not compute or not bandwidth or seconds <= 0:
        return None
    memory = bandwidth * issued_flops / traffic
    return Roofline(issued_flops / seconds / min(compute, memory), "compute" if compute <= memory else "memory")
