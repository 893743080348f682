"""Linear attention where every query sees every key: one state per head, in pieces that fit the cache.

With S = Σ_j φ(k_j)ᵀ v_j and z = Σ_j φ(k_j), o_i = φ(q_i) S / φ(q_i)·z. Features exist for a piece at a time, in both
passes: that is faster than to write and read them all, and the backward keeps nothing but the inputs, the output and S.

Symbols: B batch, K key-value heads, G query heads that share one, N length, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product, starmap
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from variants._kernelized import accumulated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_PIECE_BYTES_PER_THREAD = 1 << 19
_PIECE_BYTES_ON_CUDA = 1 << 28


class FullLinearAttention(torch.autograd.Function):
    """Query ``(B, K, G, Nq, D)``, key ``(B, K, 1, Nk, D)``, value ``(B, K, 1, Nk, Dv)`` → ``(B, K, G, Nq, Dv)``.

    ``hidden`` ``(B, 1, 1, Nk, 1)`` tells which keys nobody sees.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
        state, total = _summed(key, value, hidden)
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        for piece in _pieces(query):
            features = _features(query[piece.rows])
            read, weight = output[piece.rows], _weight(features, total[piece.heads])
            if read.is_contiguous() and read.dtype == features.dtype and query.shape[2] == 1:
                torch.matmul(features, state[piece.heads], out=read)
                read.div_(weight)
            else:
                read.copy_((features @ state[piece.heads]).div_(weight))
        ctx.save_for_backward(query, key, value, output, state, total)
        ctx.hidden = hidden
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, state, total = ctx.saved_tensors
        d_query, d_key, d_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        d_state, d_total = torch.zeros_like(state), torch.zeros_like(total)
        for piece in _pieces(query):
            features = _features(query[piece.rows])
            above = accumulated(upstream[piece.rows]) / _weight(features, total[piece.heads])
            along = (above * output[piece.rows]).sum(dim=-1, keepdim=True)
            d_state[piece.heads] += (features.mT @ above).sum(dim=2, keepdim=True)
            d_total[piece.heads] -= (features * along).sum(dim=-2)[..., None].sum(dim=2, keepdim=True)
            d_features = (above @ state[piece.heads].mT).sub_(along * total[piece.heads].mT)
            d_query[piece.rows] = d_features.mul_(features.clamp_(max=1))
        for piece in _pieces(key):
            features, values = _seen(key, value, hidden=ctx.hidden, piece=piece)
            d_value[piece.rows] = features @ d_state[piece.heads]
            d_features = (values @ d_state[piece.heads].mT).add_(d_total[piece.heads].mT)
            d_key[piece.rows] = d_features.mul_(features.clamp_(max=1))
        return d_query, d_key, d_value, None


def _summed(key: Tensor, value: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """S ``(B, K, 1, D, Dv)`` and z ``(B, K, 1, D, 1)``."""
    state = accumulated(key.new_zeros(*key.shape[:3], key.shape[-1], value.shape[-1]))
    total = accumulated(key.new_zeros(*key.shape[:3], key.shape[-1], 1))
    for piece in _pieces(key):
        features, values = _seen(key, value, hidden=hidden, piece=piece)
        state[piece.heads] += features.mT @ values
        total[piece.heads] += features.sum(dim=-2)[..., None]
    return state, total


def _seen(key: Tensor, value: Tensor, *, hidden: Tensor | None, piece: _Piece) -> tuple[Tensor, Tensor]:
    """Features and values of a piece, zero where nobody sees them, whatever they hold."""
    keys, values = key[piece.rows], accumulated(value[piece.rows])
    if hidden is None:
        return _features(keys), values
    here = hidden[piece.of_all_heads]
    return _features(keys.masked_fill(here, 0)).masked_fill_(here, 0), values.masked_fill(here, 0)


def _features(x: Tensor) -> Tensor:
    """φ(x); its slope is min(φ, 1), which is exp(x) below zero and one above."""
    x = accumulated(x)
    return x.clamp(max=0).exp_().add_(x.relu())


def _weight(features: Tensor, total: Tensor) -> Tensor:
    """What a query divides by; one where all its weights are too small for a number."""
    weight: Tensor = (features * total.mT).sum(dim=-1, keepdim=True)  # a product with one column is slower on a CPU
    return weight.masked_fill_(weight == 0, 1)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some heads of some items, and some of their positions."""

    items: slice
    key_heads: slice
    positions: slice

    @property
    def rows(self) -> tuple[slice, slice, slice, slice]:
        """Of a tensor ``(B, K, G, N, …)``."""
        return self.items, self.key_heads, slice(None), self.positions

    @property
    def heads(self) -> tuple[slice, slice]:
        """Of a tensor ``(B, K, …)``."""
        return self.items, self.key_heads

    @property
    def of_all_heads(self) -> tuple[slice, slice, slice, slice]:
        """Of a tensor ``(B, 1, 1, N, …)``."""
        return self.items, slice(None), slice(None), self.positions


def _pieces(tensor: Tensor) -> Iterator[_Piece]:
    """Whole items where they are small, else whole heads, else runs of positions: contiguous where the tensor is."""
    items, heads, group, length, dim = tensor.shape
    on_cpu = tensor.device.type == "cpu"
    budget = _PIECE_BYTES_PER_THREAD * torch.get_num_threads() if on_cpu else _PIECE_BYTES_ON_CUDA
    positions = max(1, budget // (group * dim * accumulated(tensor[:0]).element_size()))
    steps = (
        _step(positions // (length * heads), items),
        _step(positions // length, heads),
        _step(positions, length),
    )
    runs = (
        [slice(first, min(first + step, count)) for first in range(0, count, step)]
        for step, count in zip(steps, (items, heads, length), strict=True)
    )
    return starmap(_Piece, product(*runs))


def _step(fitting: int, count: int) -> int:
    return min(max(1, fitting), count)
