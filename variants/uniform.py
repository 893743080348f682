"""Uniform attention: the mean of the values that the mask allows. The floor under every fidelity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from variants._blocks import runs
from variants._contract import Attend, Complexity, NoParameters, Variant, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def build(workload: Workload, parameters: NoParameters) -> Attend:
    """Means of intervals of keys, as differences of running sums in float64 (in float32 they would cancel)."""
    pattern = Pattern.of(workload)
    rows = torch.arange(workload.query_length, device=pattern.device)
    first, last = (bound.clamp(0, workload.key_length) for bound in pattern.interval(rows))
    last = torch.maximum(first, last)
    if pattern.sees_everything:
        return lambda query, key, value: _mean_of_all(value, workload)
    parts = _parts(pattern, rows, first, last)
    count = _count(parts, first.shape)[:, None, :, None]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        sums = pad(value.double().cumsum(dim=2), (0, 0, 1, 0))
        totals = sums.new_zeros(*value.shape[:2], workload.query_length, value.shape[-1])
        for part in parts:
            totals[:, :, part.rows] = _at(sums, part.last) - _at(sums, part.first)
        return expand_heads((totals / count).to(value.dtype), workload)

    return attend


def _mean_of_all(value: Tensor, workload: Workload) -> Tensor:
    mean = value.mean(dim=2, keepdim=True)
    return expand_heads(mean, workload).expand(-1, -1, workload.query_length, -1).contiguous()


@dataclass(frozen=True, slots=True)
class Part:
    """R queries that see the same number of intervals: ``first ≤ j < last``, two ``(B or 1, R, intervals)``."""

    rows: slice
    first: Tensor
    last: Tensor


def _parts(pattern: Pattern, rows: Tensor, first: Tensor, last: Tensor) -> list[Part]:
    """One interval for every query, or as many as its row of BigBird's table has blocks, cut to that interval."""
    if pattern.table is None or pattern.mask.bigbird is None:
        return [Part(slice(None), first[..., None], last[..., None])]
    size = pattern.mask.bigbird.block
    parts = []
    for index, here in runs((rows + pattern.offset).clamp(min=0) // size):
        starts = pattern.table[index].nonzero().flatten() * size
        low = torch.maximum(first[:, here, None], starts)
        parts.append(Part(here, low, torch.maximum(low, torch.minimum(last[:, here, None], starts + size))))
    return parts


def _count(parts: list[Part], shape: torch.Size) -> Tensor:
    """How many keys each query sees, at least one to divide by, ``(B or 1, Nq)`` float64."""
    count = parts[0].first.new_zeros(shape)
    for part in parts:
        count[:, part.rows] = (part.last - part.first).sum(dim=-1)
    return count.clamp(min=1).double()


def _at(sums: Tensor, position: Tensor) -> Tensor:
    """Running sums ``(B, H, Nk + 1, D)`` at ``(B or 1, R, intervals)`` positions, summed over the intervals."""
    if len(position) == 1:
        return sums[:, :, position[0]].sum(dim=3)
    return torch.stack([item[:, where].sum(dim=2) for item, where in zip(sums, position, strict=True)])


def obstacles(workload: Workload, parameters: NoParameters) -> Sequence[str]:
    mask = Mask.parse(workload.mask)
    terms = mask.unsupported(*mask.terms - {"softcap", "alibi"})
    return [f"{term}: uniform weights have no scores that it could change" for term in terms]


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
    return workload.by_mode(elements, elements)


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
    equation=r"o_i = \frac{1}{|A_i|} \sum_{j \in A_i} v_j, \quad A_i = \text{the keys that } i \text{ may see}",
    exact_when="all scores of a row are equal",
    traps=(
        (
            "It reads neither query nor key. An approximation that is no nearer to exact attention than this one "
            "does not attend."
        ),
    ),
    uses=frozenset({"value"}),
)
