"""Top-k attention: exact softmax over the k keys of highest score per query, whatever it takes to find them.

No method that gives each query k keys can pick better ones by score, and so this bounds what sparsity can reach. All
scores are computed, some queries at a time; k weights and keys per query are kept for the backward, which is exact for
the chosen keys. With k of at least the keys it is exact attention.

Symbols: B batch, H heads, Nq and Nk lengths, C queries of a chunk, k keys per query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from variants._contract import Attend, Complexity, Paper, Variant, Workload
from variants._drawn import accumulated
from variants._pattern import Pattern
from variants._reference import changed_scores, expand_heads, masked_softmax
from variants._scores import Scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Parameters:
    """``k`` keys per query, at most all."""

    k: int = 64


def keys_per_query(workload: Workload, parameters: Parameters) -> int:
    return min(parameters.k, workload.key_length)


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each query and their keys, in no order; hidden keys (−inf) where there are too few."""
    highest: tuple[Tensor, Tensor] = scores.topk(k, dim=-1, sorted=False)
    return highest


class TopK(torch.autograd.Function):
    """Query ``(B, H, Nq, D)``, key and value with Hkv heads → ``(B, H, Nq, Dv)``.

    Products with few weights are dense ones: over rows of k scattered keys they would be slower than over all.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        scores, k = rest
        output = query.new_empty(*query.shape[:3], value.shape[3])
        weights = query.new_empty(*query.shape[:3], k, dtype=accumulated(query[:0]).dtype)
        keys = torch.empty(weights.shape, dtype=torch.int64, device=query.device)
        softcap = scores.pattern.mask.softcap
        slopes = None if softcap is None else torch.empty_like(weights)
        values = accumulated(value)
        for chunk in scores.chunks:
            here = scores.of(query, key, chunk)
            highest, chosen = best(here, k)
            empty = highest.amax(dim=-1, keepdim=True).isneginf()
            kept = highest.masked_fill(empty, 0).softmax(dim=-1).masked_fill_(empty, 0)
            dense = here.zero_().scatter_(-1, chosen, kept)
            output[:, :, chunk] = scores.by_head(dense.view(*key.shape[:2], -1, key.shape[2]) @ values)
            weights[:, :, chunk], keys[:, :, chunk] = kept, chosen
            if slopes is not None:
                slopes[:, :, chunk] = scores.slope(highest, chosen, chunk, softcap)
        ctx.save_for_backward(query, key, value, weights, keys, slopes)
        ctx.scores = scores
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, keys, slopes = ctx.saved_tensors
        scores: Scores = ctx.scores
        scale = scores.pattern.workload.softmax_scale
        all_keys, all_values = accumulated(key), accumulated(value)
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(all_keys), torch.zeros_like(all_values)
        for chunk in scores.chunks:
            kept, chosen = weights[:, :, chunk], keys[:, :, chunk]
            above = scores.grouped(upstream, chunk)
            d_weights = scores.by_head(above @ all_values.mT)
            d_kept = d_weights.gather(-1, chosen)
            dense = d_weights.zero_().scatter_(-1, chosen, kept)
            grouped = dense.view(*key.shape[:2], -1, key.shape[2])
            d_value += grouped.mT @ above
            d_kept = d_kept.sub_((d_kept * kept).sum(dim=-1, keepdim=True)).mul_(kept).mul_(scale)
            if slopes is not None:
                d_kept.mul_(slopes[:, :, chunk])
            dense.scatter_(-1, chosen, d_kept)
            d_query[:, :, chunk] = scores.by_head(grouped @ all_keys)
            d_key += grouped.mT @ scores.grouped(query, chunk)
        return d_query, d_key.to(key.dtype), d_value.to(value.dtype), None, None


def build(workload: Workload, parameters: Parameters) -> Attend:
    scores, k = Scores.of_workload(workload), keys_per_query(workload, parameters)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = TopK.apply(query, key, value, scores, k)  # type: ignore[no-untyped-call]  # torch's
        return output

    return attend


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    return [] if parameters.k >= 1 else [f"k must be at least 1, got {parameters.k}"]


def route(query: Tensor, key: Tensor, *, workload: Workload, parameters: Parameters) -> Tensor:
    """The chosen keys, ``(B, H, Nq, k)`` int64; hidden ones among them where a query sees fewer than k."""
    scores, k = Scores.of_workload(workload), keys_per_query(workload, parameters)
    return torch.cat([best(scores.of(query, key, chunk), k)[1] for chunk in scores.chunks], dim=2)


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    parameters: Parameters,
    rows: Tensor,
    routing: Any = None,
) -> Tensor:
    """Softmax over the chosen keys in sight, given the choices."""
    rows = rows.to(query.device)
    pattern = Pattern.of(workload, query.device)
    scores = query[:, :, rows] @ expand_heads(key, workload).mT * workload.softmax_scale
    scores, allowed = changed_scores(scores, pattern=pattern, rows=rows)
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, routing[:, :, rows], value=True)
    return masked_softmax(scores, allowed & chosen) @ expand_heads(value, workload)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Two products over all pairs, since all scores are needed; four in the backward, which needs none again."""
    pairs = workload.batch * workload.heads * workload.query_length * workload.key_length
    forward = 2 * pairs * (workload.head_dim + workload.value_dim)
    return workload.by_mode(forward, 2 * forward)


VARIANT = Variant(
    name="topk",
    family="sparse",
    exact=False,
    summary="Exact softmax over the k best keys of each query: the oracle above every method that keeps k.",
    paper=Paper("Memory-efficient Transformers via Top-k Attention", 2021, "2106.06899"),
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=2, memory=1),
    equation=(
        r"o_i = \sum_{j \in T_i} \frac{e^{s\,q_i \cdot k_j}}{\sum_{l \in T_i} e^{s\,q_i \cdot k_l}}\, v_j, \quad T_i "
        r"= \text{the } k \text{ keys of highest score}"
    ),
    exact_when="k is at least the number of keys",
    traps=(
        "All scores are computed to find the best: it bounds what sparse methods can reach, and is no fast one itself.",
        "Rounding decides between keys of nearly equal score, so that outputs are held to the choice that was made.",
    ),
    route=route,
)
