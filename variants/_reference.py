"""Exact attention under a mask, dense, for some query rows: the formula that others are held against.

It computes in the dtype of its inputs: float64 gives the truth, the working dtype the rounding to expect.
Costs O(rows · Nk · D) time and O(rows · Nk) memory per batch item and head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from variants._pattern import Pattern

if TYPE_CHECKING:
    from torch import Tensor

    from variants._contract import Workload


def expand_heads(tensor: Tensor, workload: Workload) -> Tensor:
    """Key or value with one head per query head: consecutive query heads share (interleaved, not tiled)."""
    return tensor if workload.group == 1 else tensor.repeat_interleave(workload.group, dim=1)


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over the allowed entries of the last dimension; rows with none give zeros, and no NaN gradient."""
    hidden = ~allowed
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return weights.masked_fill(hidden, 0)  # NaN where a row is all −inf; both fills stop it, on the way back too


def changed_scores(scores: Tensor, *, pattern: Pattern, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Scores ``(B, H, R, Nk)`` of the given query rows after cap and bias, and which of them are allowed."""
    if pattern.mask.softcap is not None:
        scores = pattern.mask.softcap * torch.tanh(scores / pattern.mask.softcap)
    allowed, bias = pattern.rows(rows)
    return scores if bias is None else scores + bias.to(scores.dtype), allowed


def masked_weights(scores: Tensor, *, pattern: Pattern, rows: Tensor) -> Tensor:
    """Attention weights ``(B, H, R, Nk)`` of the given query rows, from their scores before cap, bias and mask."""
    return masked_softmax(*changed_scores(scores, pattern=pattern, rows=rows))


def pattern_weights(query: Tensor, key: Tensor, *, pattern: Pattern, rows: Tensor) -> Tensor:
    """Attention weights of the given query rows under ``pattern``, ``(B, H, R, Nk)``. ``key`` has H heads."""
    scores = query[:, :, rows.to(query.device)] @ key.mT * pattern.workload.softmax_scale
    return masked_weights(scores, pattern=pattern, rows=rows)


def exact(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    parameters: Any = None,
    rows: Tensor,
    routing: Any = None,
) -> Tensor:
    """softmax(mask(scale · QKᵀ)) V for the given query rows, as :class:`variants._contract.Reference` says."""
    pattern = Pattern.of(workload, query.device)
    weights = pattern_weights(query, expand_heads(key, workload), pattern=pattern, rows=rows)
    return weights @ expand_heads(value, workload)
