"""The least that must be moved for a workload, whoever solves it, and how fast the machine moves so much."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from variants._contract import Use, Workload

COPY = "copy_bytes_per_second"

_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def least_traffic_bytes(workload: Workload, uses: Collection[Use] = ("query", "key", "value")) -> int:
    """Bytes that an implementation must move: inputs that it ``uses`` read once, results written once."""
    query_row, key_row = workload.heads * workload.query_length, workload.kv_heads * workload.key_length
    elements = {
        "query": query_row * workload.head_dim,
        "key": key_row * workload.head_dim,
        "value": key_row * workload.value_dim,
    }
    inputs, output = sum(elements[name] for name in uses), query_row * workload.value_dim
    forward = inputs + output
    backward = inputs + 2 * output + inputs  # reads inputs, output and its gradient; writes a gradient for each input
    return workload.batch * workload.by_mode(forward, backward) * item_bytes(workload.dtype)


def item_bytes(dtype: str) -> int:
    """Bytes of one number."""
    return _ITEM_BYTES[dtype]


def copy_bandwidths(ceilings: Mapping[str, float]) -> dict[int, float]:
    """The rates of ``copy_bytes_per_second:SIZE``, by the size of the buffer in bytes."""
    return {
        int(size): rate
        for name, rate in ceilings.items()
        for key, _, size in [name.partition(":")]
        if key == COPY and size
    }


def copy_bandwidth(ceilings: Mapping[str, float], traffic_bytes: int) -> float | None:
    """The rate of the smallest copy that holds the traffic, or of main memory; None where neither was measured."""
    sized = copy_bandwidths(ceilings)
    fitting = [size for size in sized if size >= traffic_bytes]
    return sized[min(fitting)] if fitting else ceilings.get(COPY)
