"""Linformer's formula: softmax(Q(EK)ᵀ/√d)(FV), with E and F from the keys' positions to few (arXiv 2006.04768).

Shared by ``linformer`` and ``linformer_pytorch``: both run with these matrices and answer to this formula.

Symbols: B batch, H heads, Hkv key heads, N keys, n of them kept (no padding), k rank, R rows.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch

from variants._contract import Attend, Paper, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

PAPER = Paper("Linformer: Self-Attention with Linear Complexity", 2020, "2006.04768")

Projection = Literal["pooling", "random", "learned"]
Sharing = Literal["none", "headwise", "kv", "layerwise"]


@dataclass(frozen=True, slots=True)
class Parameters:
    """What E and F are; both have ``min(rank, N)`` rows.

    ``projection``: ``pooling`` takes means over runs of keys, as even as they can be, and is not trained;
    ``random`` draws N(0, 1/k), seeded; ``learned`` starts there, and its gradient is computed in training.
    ``sharing``: ``kv`` has one matrix for keys and values (E = F), ``headwise`` one each, ``none`` one each per key
    head. The paper's ``layerwise`` spans layers, of which one attention has none.
    """

    rank: int = 128
    projection: Projection = "pooling"
    sharing: Sharing = "kv"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        for name, kind in (("projection", Projection), ("sharing", Sharing)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}")


class Matrices(NamedTuple):
    """E and F, each ``(k, N)``, or ``(Hkv, k, N)`` where heads have their own."""

    key: Tensor
    value: Tensor

    def of_first(self, kept: int) -> Matrices:
        """The columns of the first keys: what zero keys and values after them leave of the products."""
        return Matrices(self.key[..., :kept], self.value[..., :kept])

    @property
    def distinct(self) -> tuple[Tensor, ...]:
        """One matrix where keys and values share it."""
        return (self.key,) if self.key is self.value else (self.key, self.value)

    def like(self, tensor: Tensor) -> Matrices:
        """In the dtype and on the device of ``tensor``, apart from any graph."""
        return Matrices(self.key.detach().to(tensor), self.value.detach().to(tensor))


def obstacles(workload: Workload, parameters: Parameters) -> list[str]:
    """Masks that projected keys cannot honour, and ways of sharing that mean nothing here."""
    mask = Mask.parse(workload.mask)
    reasons = [f"{term}: {_why_not(term.partition(':')[0])}" for term in mask.unsupported("padding")]
    match parameters.projection, parameters.sharing:
        case _, "layerwise":
            reasons.append("layerwise sharing is among the layers of a model; in a single attention it is 'kv'")
        case "pooling", "none" | "headwise":
            reasons.append(
                f"pooling is one matrix for all; sharing {parameters.sharing!r} needs random or learned ones"
            )
    return reasons


def _why_not(term: str) -> str:
    match term:
        case "alibi" | "softcap":
            return "Linformer's scores are of mixed keys; a change of each key's own score has no place"
        case "causal" | "window" | "prefix":
            return "Linformer is not causal: each projected key mixes keys of the whole sequence, later ones too"
        case _:
            return "Linformer mixes the keys before it scores them, so that no query can be kept from some"


def trains(workload: Workload, parameters: Parameters) -> bool:
    """Whether E and F want a gradient."""
    return parameters.projection == "learned" and workload.mode != "fwd"


def matrices(workload: Workload, parameters: Parameters) -> Matrices:
    """E and F over all keys, on the workload's device, as numbers of the workload's dtype."""
    rank, length = min(parameters.rank, workload.key_length), workload.key_length
    shape = (workload.kv_heads, rank, length) if parameters.sharing == "none" else (rank, length)
    pools = parameters.projection == "pooling"
    key = pooling(length, rank) if pools else _normal("E", shape, workload.seed)
    value = _normal("F", shape, workload.seed) if parameters.sharing != "kv" else key
    made = [matrix.to(workload.device, getattr(torch, workload.dtype)) for matrix in Matrices(key, value).distinct]
    return Matrices(*(matrix.requires_grad_(trains(workload, parameters)) for matrix in (made[0], made[-1])))


def pooling(length: int, rank: int) -> Tensor:
    """The matrix of means over runs of keys, ``(min(rank, length), length)`` float64."""
    rank = min(rank, length)
    size, longer = divmod(length, rank)
    sizes = torch.full((rank,), size)
    sizes[:longer] += 1
    run = torch.repeat_interleave(torch.arange(rank), sizes)
    matrix = torch.zeros(rank, length, dtype=torch.float64)
    matrix[run, torch.arange(length)] = 1 / sizes[run].double()
    return matrix


def _normal(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """N(0, 1/k) in float32, for a shape of (…, k, N)."""
    digest = hashlib.sha256(f"linformer:{name}:{shape}:{seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randn(shape, generator=generator).div_(math.sqrt(shape[-2]))


def kept_keys(workload: Workload) -> list[int] | None:
    """How many keys of each batch item are no padding; None without padding."""
    kept = Pattern.of(workload, "cpu").kept
    return None if kept is None else kept.tolist()


def attended_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    rows: Tensor,
    matrices_of: Callable[[int], Matrices],
) -> Tensor:
    """The formula as written, item by item, for some query rows: ``(B, H, R, Dv)``.

    ``matrices_of`` gives E and F for the first n keys.
    """
    query = query[:, :, rows.to(query.device)]
    outputs = []
    for item, kept in enumerate(kept_keys(workload) or [workload.key_length] * workload.batch):
        own = matrices_of(kept).like(key)
        keys = expand_heads((own.key @ key[item, :, :kept])[None], workload)[0]
        values = expand_heads((own.value @ value[item, :, :kept])[None], workload)[0]
        weights = (query[item] @ keys.mT * workload.softmax_scale).softmax(dim=-1)
        outputs.append(weights @ values)
    return torch.stack(outputs)


def trained(attend: Attend, weights: Sequence[Tensor]) -> Attend:
    """``attend`` whose backward computes the gradient of ``weights`` too, even where only inputs' gradients are asked.

    Autograd leaves out what nobody asks for; in training somebody does, and it costs.
    """

    def attend_and_train(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return attend(query, key, value)
        output: Tensor = _Trained.apply(query, key, value, attend, *weights)  # type: ignore[no-untyped-call]  # torch's
        return output

    return attend_and_train


class _Trained(torch.autograd.Function):
    """The attention as one step of a graph, whose own graph lies within."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, attend: Attend, *weights: Tensor) -> Tensor:
        with torch.enable_grad():
            inputs = tuple(tensor.detach().requires_grad_() for tensor in (query, key, value))
            output = attend(*inputs)
        ctx.inner = output, (*inputs, *weights)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        output, leaves = ctx.inner
        query, key, value, *weights = torch.autograd.grad(output, leaves, upstream, allow_unused=True)
        return query, key, value, None, *weights
