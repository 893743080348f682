"""Uniform attention: the mean of the values that the mask allows. The floor under every fidelity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from variants._contract import Attend, Complexity, NoParameters, Variant, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def build(workload: Workload, parameters: NoParameters) -> Attend:
    """Means of intervals, as differences of running sums in float64 (float32 on a GPU would cancel)."""
    pattern = Pattern.of(workload)
    rows = torch.arange(workload.query_length, device=pattern.device)
    first, last = (bound.clamp(0, workload.key_length) for bound in pattern.interval(rows))
    last = torch.maximum(first, last)
    one_mean = bool((first == first[:, :1]).all() and (last == last[:, :1]).all())
    count = (last - first).clamp(min=1).to(torch.float64)[:, None, :, None]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if one_mean and len(first) == 1 and last[0, 0] > first[0, 0]:
            mean = value[:, :, int(first[0, 0]) : int(last[0, 0])].mean(dim=2, keepdim=True)
            return expand_heads(mean, workload).expand(-1, -1, workload.query_length, -1).contiguous()
        sums = torch.nn.functional.pad(value.double().cumsum(dim=2), (0, 0, 1, 0))
        means = (_at(sums, last) - _at(sums, first)) / count
        return expand_heads(means.to(value.dtype), workload)

    return attend


def _at(sums: Tensor, position: Tensor) -> Tensor:
    """Running sums ``(B, H, Nk + 1, D)`` at ``(B or 1, Nq)`` positions: ``(B, H, Nq, D)``."""
    if len(position) == 1:
        return sums.index_select(2, position[0])
    return torch.stack([item.index_select(1, where) for item, where in zip(sums, position, strict=True)])


def obstacles(workload: Workload, parameters: NoParameters) -> Sequence[str]:
    terms = Mask.parse(workload.mask).unsupported("causal", "window", "band", "prefix", "document", "padding")
    return [f"{term}: uniform weights have no scores to change and take intervals of keys only" for term in terms]


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    parameters: Any,
    rows: Tensor,
    routing: Any = None,
) -> Tensor:
    """1/n over the n keys that a query may see."""
    allowed, _ = Pattern.of(workload, query.device).rows(rows)
    weights = allowed.to(value.dtype) / allowed.sum(dim=-1, keepdim=True).clamp(min=1)
    return weights @ expand_heads(value, workload)


def flops(workload: Workload, parameters: NoParameters) -> int:
    """No matrix product: one addition per element of the value, and one more each way in the backward."""
    elements = workload.batch * workload.kv_heads * workload.key_length * workload.value_dim
    return elements * {"fwd": 1, "bwd": 1, "fwd_bwd": 2}[workload.mode]


VARIANT = Variant(
    name="uniform",
    family="floor",
    exact=False,
    summary="The mean of the values in sight, whatever query and key say: what no attention at all would give.",
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    uses=frozenset({"value"}),
)
