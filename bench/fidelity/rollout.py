"""Attention rollout: how much of each input token reaches each token through all layers (arXiv 2005.00928).

Symbols: L layers, B sequences, H heads, N tokens. Weights may be negative, as those of a Nyström method are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

TOP = 10


def of(weights: Tensor) -> Tensor:
    """The rollout ``(B, N, N)`` of weights ``(L, B, H, N, N)``: half of each layer is its residual."""
    identity = torch.eye(weights.shape[-1], dtype=weights.dtype)
    rolled = identity.expand(weights.shape[1], -1, -1)
    for layer in weights:
        mixed = (identity + layer.mean(dim=1)) / 2
        rolled = _distributions(mixed @ rolled)
    return rolled


def compared(given: Tensor, exact: Tensor) -> tuple[float, float]:
    """Of two rollouts: the share of the ten largest of each row that are kept, and the mean total variation."""
    most = min(TOP, exact.shape[-1])
    best = torch.zeros_like(exact).scatter_(-1, exact.topk(most).indices, 1.0)
    kept = best.gather(-1, given.topk(most).indices).mean()
    return float(kept), float((given - exact).abs().sum(dim=-1).mean() / 2)


def mean_distance(weights: Tensor) -> float:
    """Mean of |i − j| over weights ``(…, N, N)``, negative ones left out, in tokens."""
    place = torch.arange(weights.shape[-1])
    shares = weights.clamp(min=0)
    shares = shares / shares.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return float((shares * (place[:, None] - place).abs()).sum(dim=-1).mean())


def _distributions(rows: Tensor) -> Tensor:
    sums = rows.sum(dim=-1, keepdim=True)
    return rows / torch.where(sums.abs() < torch.finfo(rows.dtype).tiny, torch.ones_like(sums), sums)
