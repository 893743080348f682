"""Linformer: keys and values projected from N positions to k, then ordinary attention to those.

Padding is cut off before the projection, so its content is never read. Pooling over fewer keys than the rank takes each
by itself; an item with fewer rows than others has the rest hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from variants import _linformer
from variants._contract import Attend, Complexity, Variant, Workload
from variants._linformer import Matrices, Parameters, obstacles
from variants._reference import expand_heads
from variants._segments import pooled

if TYPE_CHECKING:
    from torch import Tensor


def build(workload: Workload, parameters: Parameters) -> Attend:
    kept = _linformer.kept_keys(workload)
    rank = min(parameters.rank, workload.key_length)
    weights = None if parameters.projection == "pooling" else _linformer.matrices(workload, parameters)
    present = _present(workload, kept, rank) if weights is None else None

    def projected(tensor: Tensor, matrix: Tensor | None) -> Tensor:
        """``(B, Hkv, N, D)`` to ``(B, H, k, D)``, of each item's kept keys alone."""
        if kept is None:
            return expand_heads(_projected(tensor, matrix, rank), workload)
        items = [_projected(tensor[item : item + 1, :, :count], matrix, rank) for item, count in enumerate(kept)]
        most = max(item.shape[2] for item in items)
        return expand_heads(torch.cat([pad(item, (0, 0, 0, most - item.shape[2])) for item in items]), workload)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        to_keys, to_values = weights or (None, None)
        keys, values = projected(key, to_keys), projected(value, to_values)
        return scaled_dot_product_attention(query, keys, values, attn_mask=present, scale=workload.softmax_scale)

    if weights is None or not _linformer.trains(workload, parameters):
        return attend
    return _linformer.trained(attend, weights.distinct)


def _projected(tensor: Tensor, matrix: Tensor | None, rank: int) -> Tensor:
    return pooled(tensor, rank) if matrix is None else matrix[..., : tensor.shape[2]] @ tensor


def _present(workload: Workload, kept: list[int] | None, rank: int) -> Tensor | None:
    """Which of its pooled keys an item has, ``(B, 1, 1, k)`` bool; None where all have all."""
    counts = [min(rank, count) for count in kept or [workload.key_length]]
    if min(counts) == max(counts):
        return None
    rows = torch.arange(max(counts), device=workload.device)
    return (rows < torch.tensor(counts, device=workload.device)[:, None])[:, None, None]


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
    """softmax(Q(EK)ᵀ · scale)(FV), each item with the matrices of its kept keys."""
    del routing
    rank = min(parameters.rank, workload.key_length)
    whole = _linformer.matrices(workload, parameters)

    def of_first(kept: int) -> Matrices:
        if parameters.projection == "pooling" and kept < workload.key_length:
            return Matrices(*[_linformer.pooling(kept, rank)] * 2)
        return whole.of_first(kept)

    return _linformer.attended_rows(query, key, value, workload=workload, rows=rows, matrices_of=of_first)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Attention to k keys, whose fused backward takes five products for two; and the projections that are products."""
    kept = _linformer.kept_keys(workload) or [workload.key_length] * workload.batch
    rank = min(parameters.rank, workload.key_length)
    head, value = workload.head_dim, workload.value_dim
    if parameters.projection == "pooling":
        rank, projected = min(rank, max(kept)), 0
    else:
        projected = workload.kv_heads * sum(kept) * rank * (head + value)
    pairs = workload.batch * workload.heads * workload.query_length * rank
    forward = pairs * (head + value) + projected
    backward = pairs * (3 * head + 2 * value) + projected * (2 if parameters.projection == "learned" else 1)
    return 2 * workload.by_mode(forward, backward)


VARIANT = Variant(
    name="linformer",
    family="low_rank",
    exact=False,
    summary="Attention to k projections of the keys; pooled unless told otherwise, and so untrained.",
    paper=_linformer.PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=r"O = \operatorname{softmax}(s\,Q (E K)^\top)\,(F V), \quad E, F \in \mathbb{R}^{k \times N}",
    exact_when="the rank is at least the number of keys, with pooling (E = F = I)",
    traps=(
        "Each projected key mixes keys of the whole sequence, later ones too: it cannot be causal.",
        (
            "Pooling takes means, which needs no product and no training; `linformer.projection=learned` has the "
            "products, and in training their gradient."
        ),
        "Learned matrices are as wide as the longest sequence.",
    ),
)
