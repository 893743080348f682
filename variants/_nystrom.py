"""The Nyström approximation of a softmax matrix (Nyströmformer, arXiv 2102.03902): its parameters and its formula.

With q̃ and k̃ landmarks, the means of runs of queries and of keys, and Z the sixth iterate to the pseudo-inverse of
A = softmax(s q̃k̃ᵀ),

    o = softmax(s Q k̃ᵀ) · Z · softmax(s q̃ Kᵀ) V.

Padding is left out: runs are of an item's kept keys alone. Where queries and keys have one length, they are the same
positions, and padded queries make no landmarks either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from variants._contract import Paper, Workload
from variants._linformer import pooling
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import expand_heads

if TYPE_CHECKING:
    from torch import Tensor

PAPER = Paper("Nyströmformer: A Nyström-Based Algorithm for Approximating Self-Attention", 2021, "2102.03902")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Landmarks among the queries and as many among the keys; steps of the iteration to the pseudo-inverse."""

    landmarks: int = 64
    iterations: int = 6

    def __post_init__(self) -> None:
        for name, least in (("landmarks", 1), ("iterations", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


def obstacles(workload: Workload) -> list[str]:
    """Masks that landmarks cannot honour: all but padding."""
    terms = Mask.parse(workload.mask).unsupported("padding")
    return [f"{term}: {_why_not(term.partition(':')[0])}" for term in terms]


def _why_not(term: str) -> str:
    match term:
        case "softcap" | "alibi":
            return "Nyströmformer's scores are of landmarks; a change of each pair's own score has no place"
        case "causal" | "window" | "prefix":
            return "Nyströmformer is not causal: each landmark is a mean over positions, later ones too"
        case _:
            return "Nyströmformer's landmarks are means over positions, so that no query can be kept from some keys"


@dataclass(frozen=True, slots=True)
class Extent:
    """How many queries of an item make landmarks, and how many of its keys there are."""

    queries: int
    keys: int


def extents(workload: Workload) -> list[Extent] | None:
    """One per batch item; None without padding."""
    kept = Pattern.of(workload, "cpu").kept
    if kept is None:
        return None
    return [Extent(count if workload.is_square else workload.query_length, count) for count in kept.tolist()]


def whole(workload: Workload) -> Extent:
    """Everything."""
    return Extent(workload.query_length, workload.key_length)


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """The iterate of section 4.1, from Aᵀ/(‖A‖₁‖A‖∞), each matrix ``(…, m, n)`` by its own norms, to ``(…, n, m)``."""
    rows = matrix.abs().sum(dim=-1).amax(dim=-1)
    columns = matrix.abs().sum(dim=-2).amax(dim=-1)
    inverse = matrix.mT / (rows * columns)[..., None, None]
    identity = torch.eye(matrix.shape[-2], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return inverse


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
    """The formula as written, item by item, its iteration included."""
    del routing
    scale = workload.softmax_scale
    key, value = expand_heads(key, workload), expand_heads(value, workload)
    outputs = []
    for item, extent in enumerate(extents(workload) or [whole(workload)] * workload.batch):
        q, k, v = query[item], key[item, :, : extent.keys], value[item, :, : extent.keys]
        q_means = pooling(extent.queries, parameters.landmarks).to(q) @ q[:, : extent.queries]
        k_means = pooling(extent.keys, parameters.landmarks).to(k) @ k
        from_landmarks = (q[:, rows.to(q.device)] @ k_means.mT * scale).softmax(dim=-1)
        among_landmarks = (q_means @ k_means.mT * scale).softmax(dim=-1)
        to_landmarks = (q_means @ k.mT * scale).softmax(dim=-1)
        outputs.append(from_landmarks @ pseudo_inverse(among_landmarks, parameters.iterations) @ (to_landmarks @ v))
    return torch.stack(outputs)
