"""Performer's random features, FAVOR+ (Rethinking Attention with Performers, arXiv 2009.14794): parameters and draws.

exp(s q·k) is the mean of φ_w(q) φ_w(k) over w ~ N(0, I), with φ_w(x) = exp(w·x′ − ‖x′‖²/2) and x′ = √s x. Directions of
one block are orthogonal, which lowers the variance, and as long as independent ones.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from variants._contract import Claim, Paper, Workload

PAPER = Paper("Rethinking Attention with Performers", 2020, "2009.14794")
CLAIMS = (
    Claim(
        statement="the error falls with the root of the number of features",
        metric="error_exponent",
        value=-0.5,
        parameter="features",
        source="Performers (2020, arXiv 2009.14794), the variance of its estimator",
    ),
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many features; None for the ⌊D · ln D⌋ that the paper's theory asks for."""

    features: int | None = None

    def __post_init__(self) -> None:
        if self.features is not None and self.features < 1:
            raise ValueError(f"features must be at least 1, got {self.features}")

    def count(self, workload: Workload) -> int:
        """Features of this workload; at least one."""
        if self.features is not None:
            return self.features
        return max(1, math.floor(workload.head_dim * math.log(workload.head_dim)))


def directions(workload: Workload, parameters: Parameters) -> Tensor:
    """W ``(M, D)`` float64 on the CPU, seeded: orthogonal within blocks of D rows, lengths as of N(0, I)."""
    count, dim = parameters.count(workload), workload.head_dim
    digest = hashlib.sha256(f"performer:{count}:{dim}:{workload.seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    blocks = -(-count // dim)
    drawn = torch.randn(blocks, dim, dim, generator=generator, dtype=torch.float64)
    orthogonal, upper = torch.linalg.qr(drawn)
    signs = upper.diagonal(dim1=-2, dim2=-1).sign()  # else not uniform over the rotations
    lengths = torch.randn(count, dim, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
    rows: Tensor = (orthogonal * signs[:, None]).mT.flatten(0, 1)[:count] * lengths
    return rows


def logarithms(x: Tensor, weights: Tensor, scale: float) -> Tensor:
    """Of φ(x) the logarithm, but for log √M, ``(…, N, D)`` to ``(…, N, M)``."""
    x = x * math.sqrt(scale)
    return x @ weights.mT - x.square().sum(dim=-1, keepdim=True) / 2


def obstacles(workload: Workload) -> list[str]:
    """Scales that no real features have."""
    if workload.softmax_scale >= 0:
        return []
    return [
        f"features exist for a scale of at least 0 (its root goes to both sides), not for {workload.softmax_scale:g}"
    ]
