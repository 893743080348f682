"""How far attention weights are from the exact ones, row by row; a number for all of them.

Both tensors are ``(B, H, R, Nk)`` float64: the weights of R queries. Exact rows are distributions, or zero where a
query sees nothing: such rows do not count. Those of an approximation may be negative and need not sum to one. None
where no row counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

TOP = 8

_TIE = 1e-9


def total_variation(given: Tensor, exact: Tensor) -> float | None:
    """Half the summed difference: 0 for the same weights, 1 for distributions that share no key."""
    return _mean((given - exact).abs().sum(dim=-1) / 2, exact)


def overlap(given: Tensor, exact: Tensor) -> float | None:
    """The exact mass that the approximation gives to the same keys, Σ min: 1 for the same weights."""
    return _mean(torch.minimum(given.clamp(min=0), exact).sum(dim=-1), exact)


def mass_recall(given: Tensor, exact: Tensor) -> float | None:
    """Share of the exact mass on keys to which the approximation gives a weight other than zero."""
    total = float(exact.sum())
    return float((exact * (given != 0)).sum()) / total if total else None


def density(given: Tensor, allowed: Tensor) -> float | None:
    """Pairs with a weight other than zero, of those that are ``allowed``, ``(B or 1, 1, R, Nk)``."""
    possible = int(allowed.sum()) * (given.shape[0] // allowed.shape[0]) * given.shape[1]
    return int((given != 0).sum()) / possible if possible else None


def top_recall(given: Tensor, exact: Tensor, allowed: Tensor, most: int = TOP) -> float | None:
    """Share of the ``most`` keys of largest exact weight that are among those of the approximation.

    Of keys whose weights are equal, as all of the uniform ones are, each counts with the chance of being chosen.
    A query that sees fewer keys is asked for as many as it sees.
    """
    most = min(most, exact.shape[-1])
    asked = allowed.expand(exact.shape[0], exact.shape[1], -1, -1).sum(dim=-1, keepdim=True).clamp(1, most)
    best = exact >= exact.topk(most).values.gather(-1, asked - 1)
    least = given.topk(most).values.gather(-1, asked - 1)
    margin = _TIE * least.abs()
    above, tied = given > least + margin, (given - least).abs() <= margin
    left = asked - above.sum(dim=-1, keepdim=True)
    chance = above + tied * left / tied.sum(dim=-1, keepdim=True)
    return _mean((best * chance).sum(dim=-1) / best.sum(dim=-1), exact)


def spectral_error(given: Tensor, exact: Tensor) -> float | None:
    """‖Ã − A‖₂ / ‖A‖₂ of the R rows, the mean over batch items and heads."""
    size = _spectral_norm(exact)
    known = size > 0
    return float((_spectral_norm(given - exact)[known] / size[known]).mean()) if bool(known.any()) else None


def entropy(weights: Tensor) -> Tensor:
    """−Σ p ln p of each row in nats, ``(B, H, R)``; negative weights count as none, rows are scaled to sum to one."""
    shares = weights.clamp(min=0)
    shares = shares / shares.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
    summed: Tensor = torch.special.entr(shares).sum(dim=-1)
    return summed


def _spectral_norm(rows: Tensor) -> Tensor:
    """Largest singular value of each ``(R, Nk)``, from the Gram matrix of its R rows."""
    largest: Tensor = torch.linalg.eigvalsh(rows @ rows.mT)[..., -1]
    return largest.clamp(min=0).sqrt()


def _mean(by_row: Tensor, exact: Tensor) -> float | None:
    """Over the rows that see anything."""
    counted = by_row[exact.sum(dim=-1) > 0]
    return float(counted.mean()) if counted.numel() else None
