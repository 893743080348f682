"""Attention by position: weights that are the same whatever query and key say. Only the values are read.

Symbols: B batch, H heads, Hkv key heads, R rows of queries, Nk keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from variants._contract import Paper, Workload
from variants._unscaled import scale_obstacles

if TYPE_CHECKING:
    from torch import Tensor

PAPER = Paper("Learning Positional Attention for Sequential Recommendation", 2024, "2407.02793")


def mixed(weights: Tensor, value: Tensor, workload: Workload) -> Tensor:
    """``(B, H, R, Dv)`` from weights ``(B or 1, H, R, Nk)`` and values ``(B, Hkv, Nk, Dv)``; nothing is repeated."""
    batch, rows, group = workload.batch, weights.shape[2], workload.group
    weights = weights.reshape(len(weights), workload.kv_heads, group * rows, weights.shape[3])
    if len(weights) == batch:
        return (weights @ value).view(batch, workload.heads, rows, -1)
    columns = value.permute(1, 2, 0, 3).flatten(2)  # items side by side, so that all use the same weights
    summed = (weights[0] @ columns).view(workload.heads, rows, batch, -1)
    return summed.permute(2, 0, 1, 3).contiguous()


def obstacles(workload: Workload) -> list[str]:
    return scale_obstacles(workload, "weights come from positions, and no product of query and key is there to scale")


def mixing_flops(workload: Workload) -> int:
    """The product of all weights with the values."""
    pairs = workload.query_length * workload.key_length
    return 2 * workload.batch * workload.heads * pairs * workload.value_dim


def chunks(workload: Workload, size: int) -> list[Tensor]:
    """Query positions in runs of at most ``size``."""
    return list(torch.arange(workload.query_length, device=workload.device).split(size))
