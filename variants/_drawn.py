"""Seeded matrices where a model would have learned ones."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from variants._contract import Workload


class Learnable(Protocol):
    """Parameters that say whether the matrices are learned: then training computes their gradient too."""

    @property
    def learned(self) -> bool: ...


def trains(workload: Workload, parameters: Learnable) -> bool:
    """Whether the matrices want a gradient."""
    return parameters.learned and workload.mode != "fwd"


def normal(name: str, shape: tuple[int, ...], deviation: float, *, workload: Workload, learns: bool) -> Tensor:
    """N(0, deviation²) on the workload's device, as numbers of its dtype; apart from the global generator.

    ``name`` keeps matrices of one shape apart, from each other and from the inputs, which have the same seed.
    """
    return _placed(_drawn(name, shape, workload.seed).mul_(deviation), workload, learns=learns)


def rotation(name: str, heads: int, size: int, *, workload: Workload, learns: bool) -> Tensor:
    """Random orthogonal matrices ``(heads, size, size)``, likewise. They keep lengths, whatever the size."""
    orthogonal = torch.linalg.qr(_drawn(name, (heads, size, size), workload.seed).double())[0]
    return _placed(orthogonal, workload, learns=learns)


def _drawn(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    digest = hashlib.sha256(f"{name}:{shape}:{seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randn(shape, generator=generator)


def _placed(matrix: Tensor, workload: Workload, *, learns: bool) -> Tensor:
    return matrix.to(workload.device, getattr(torch, workload.dtype)).requires_grad_(learns)


def accumulated(tensor: Tensor) -> Tensor:
    """Half precision as float32, so that sums over many keys do not swallow their parts."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
