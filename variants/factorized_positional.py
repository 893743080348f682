"""Positional attention of low rank: scores are products of k numbers for each query position and each key position.

The N×N scores are never held: they are computed for some queries at a time, and again in the backward. Key positions
belong to key heads, so that grouped query heads share them as they share keys. With rank N any table can be had.

Symbols: B batch, H heads, Hkv key heads, Nq and Nk lengths, k rank, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from variants import _positional
from variants._contract import Attend, Complexity, Variant, Workload
from variants._drawn import accumulated, normal, trains
from variants._linformer import trained
from variants._pattern import Pattern
from variants._positional import mixed, mixing_flops
from variants._reference import expand_heads, masked_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Parameters:
    """``rank`` is k, at most the lengths. ``learned``: whether training computes the gradient of both factors."""

    rank: int = 64
    learned: bool = False


def rank_of(workload: Workload, parameters: Parameters) -> int:
    return min(parameters.rank, workload.query_length, workload.key_length)


def factors(workload: Workload, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """``(H, Nq, k)`` and ``(Hkv, Nk, k)``, whose products have variance 1."""
    rank, learns = rank_of(workload, parameters), trains(workload, parameters)
    deviation = rank**-0.25
    shape = (workload.heads, workload.query_length, rank)
    queries = normal("factorized_positional:query", shape, deviation, workload=workload, learns=learns)
    shape = (workload.kv_heads, workload.key_length, rank)
    keys = normal("factorized_positional:key", shape, deviation, workload=workload, learns=learns)
    return queries, keys


def build(workload: Workload, parameters: Parameters) -> Attend:
    queries, keys = factors(workload, parameters)
    pattern = Pattern.of(workload)
    chunks = _positional.chunks(workload, _CHUNK)

    def attend_rows(value: Tensor, rows: Tensor) -> Tensor:
        of_group = accumulated(queries[:, rows]).view(workload.kv_heads, -1, queries.shape[2])
        scores = (of_group @ accumulated(keys).mT).view(1, workload.heads, len(rows), -1)
        return mixed(masked_weights(scores, pattern=pattern, rows=rows).to(value.dtype), value, workload)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return torch.cat([attend_rows(value, rows) for rows in chunks], dim=2)
        parts = [checkpoint(attend_rows, value, rows, use_reentrant=False, preserve_rng_state=False) for rows in chunks]
        return torch.cat(parts, dim=2)

    return trained(attend, (queries, keys)) if trains(workload, parameters) else attend


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    reasons = [] if parameters.rank >= 1 else [f"rank must be at least 1, got {parameters.rank}"]
    return reasons + _positional.obstacles(workload)


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
    """softmax(mask(ABᵀ)) V with the factors A and B of positions."""
    queries, keys = (factor.detach().to(value)[None] for factor in factors(workload, parameters))
    scores = queries[:, :, rows.to(value.device)] @ expand_heads(keys, workload).mT
    weights = masked_weights(scores, pattern=Pattern.of(workload, value.device), rows=rows)
    return weights @ expand_heads(value, workload)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Scores, once for the whole batch, and their product with values; the backward computes scores again."""
    scores = 2 * workload.heads * workload.query_length * workload.key_length * rank_of(workload, parameters)
    mixing = mixing_flops(workload)
    forward = scores + mixing
    backward = 3 * scores + 2 * mixing if parameters.learned else forward
    return workload.by_mode(forward, backward)


VARIANT = Variant(
    name="factorized_positional",
    family="positional",
    exact=False,
    summary="Weights from positions alone, of rank k: N·k numbers to learn for each head instead of N².",
    paper=_positional.PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=2, memory=1),
    equation=(
        r"O_h = \operatorname{softmax}(A_h B_h^\top)\,V_h, \quad A_h, B_h \in \mathbb{R}^{N \times k} \text{ learned}"
    ),
    exact_when="never: weights do not depend on the inputs",
    traps=(
        "Memory is linear, time is not: all N² scores are computed, some queries at a time, and again in the backward.",
        "The factors are drawn, not trained, and are for one length.",
    ),
    uses=frozenset({"value"}),
)
