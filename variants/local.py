"""Sliding-window attention by bands: each block of queries attends to the one run of keys around it, in linear time.

What a query sees is an interval of keys, and so is what a block of them sees, as it lies in memory: SDPA takes both in
place, with a mask for the slanted ends of the band. The backward computes a block again instead of keeping it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from variants._contract import Attend, Complexity, Variant, Workload
from variants._local import PAPER, Parameters, composed, reference
from variants._mask import Mask
from variants._pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_BLOCK = 128  # queries: a longer run of keys computes more outside the band, a shorter one is slow to start
_BLOCK_ON_CUDA = 1024  # to fill it


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of queries and the run of keys that they see.

    ``seen`` ``(B or 1, 1, queries, keys)`` bool, None where all see all. Rows of ``empty`` ``(B or 1, 1, queries, 1)``
    see nothing: they may look at something, since kernels divide by what they see, but it does not count.
    """

    queries: slice
    keys: slice
    seen: Tensor | None
    empty: Tensor | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The tiles of a workload, and how their scores are scaled."""

    tiles: list[Tile]
    workload: Workload

    def attended(self, query: Tensor, key: Tensor, value: Tensor, tile: Tile) -> Tensor:
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=tile.seen,
            scale=self.workload.softmax_scale,
            enable_gqa=self.workload.group > 1,
        )


def build(workload: Workload, parameters: Parameters) -> Attend:
    plan = Plan(list(tiles_of(Pattern.of(composed(workload, parameters)))), workload)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = _Banded.apply(query, key, value, plan)  # type: ignore[no-untyped-call]  # torch's
        return output

    return attend


def tiles_of(pattern: Pattern) -> Iterator[Tile]:
    """Blocks of queries that see anything, with their keys. Blocks whose masks look the same share one."""
    last = None
    for queries, keys in _runs(pattern):
        rows = torch.arange(queries.start, queries.stop, device=pattern.device)
        seen = pattern.rows(rows, keys)[0]
        if bool(seen.all()):
            yield Tile(queries, keys, None, None)
        elif last is not None and last.seen is not None and torch.equal(seen, last.seen) and last.empty is None:
            yield Tile(queries, keys, last.seen, None)
        else:
            empty = ~seen.any(dim=-1, keepdim=True)
            last = Tile(queries, keys, seen | empty, empty) if bool(empty.any()) else Tile(queries, keys, seen, None)
            yield last


def _runs(pattern: Pattern) -> Iterator[tuple[slice, slice]]:
    """Blocks of queries and the run of keys from the first to the last that any of them sees."""
    length = pattern.workload.query_length
    first, last = (bound.cpu() for bound in pattern.interval(torch.arange(length)))
    sees = last > first
    first, last = (
        first.masked_fill(~sees, pattern.workload.key_length).amin(dim=0),
        last.masked_fill(~sees, 0).amax(dim=0),
    )
    size = _BLOCK if pattern.workload.device == "cpu" else _BLOCK_ON_CUDA
    for start in range(0, length, size):
        block = slice(start, min(start + size, length))
        keys = slice(int(first[block].min()), int(last[block].max()))
        if keys.start < keys.stop:
            yield block, keys


class _Banded(torch.autograd.Function):
    """Attention tile by tile, of a query, key and value as in the contract."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.plan = plan
        output = query.new_zeros(*query.shape[:3], value.shape[3])
        for tile in plan.tiles:
            part = plan.attended(query[:, :, tile.queries], key[:, :, tile.keys], value[:, :, tile.keys], tile)
            output[:, :, tile.queries] = part if tile.empty is None else part.masked_fill(tile.empty, 0)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        d_query = torch.zeros_like(query)
        # a key sums over a few tiles: not in half precision
        wide = torch.promote_types(key.dtype, torch.float32)
        d_key, d_value = (torch.zeros_like(tensor, dtype=wide) for tensor in (key, value))
        for tile in ctx.plan.tiles:
            parts = query[:, :, tile.queries], key[:, :, tile.keys], value[:, :, tile.keys]
            inputs = [part.detach().requires_grad_() for part in parts]
            with torch.enable_grad():
                output = ctx.plan.attended(*inputs, tile)
            above = upstream[:, :, tile.queries]
            above = above if tile.empty is None else above.masked_fill(tile.empty, 0)
            of_query, of_key, of_value = torch.autograd.grad(output, inputs, above)
            d_query[:, :, tile.queries] = of_query
            d_key[:, :, tile.keys] += of_key
            d_value[:, :, tile.keys] += of_value
        return d_query, d_key.to(key.dtype), d_value.to(value.dtype), None


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    mask = Mask.parse(workload.mask)
    terms = mask.unsupported("causal", "window", "band", "prefix", "document", "padding")
    return [f"{term}: {_why_not(term.partition(':')[0])}" for term in terms]


def _why_not(term: str) -> str:
    if term == "bigbird":
        return "a band is one run of keys, and far blocks lie outside it; flex_local can leave blocks out of it"
    return "the bands go through a kernel that leaves scores as they are; flex_local can change them"


def flops(workload: Workload, parameters: Parameters) -> int:
    """Two products over the pairs of all tiles, hidden ones too; the backward repeats them, then takes five."""
    runs = _runs(Pattern.of(composed(workload, parameters), "cpu"))
    pairs: int = sum((queries.stop - queries.start) * (keys.stop - keys.start) for queries, keys in runs)
    forward = workload.head_dim + workload.value_dim
    backward = forward + 3 * workload.head_dim + 2 * workload.value_dim
    columns = workload.by_mode(forward, backward)
    return 2 * workload.batch * workload.heads * pairs * columns


VARIANT = Variant(
    name="local",
    family="sparse",
    exact=False,
    summary="A sliding window: every query sees its neighbours alone, block by block through SDPA.",
    paper=PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"O = \operatorname{softmax}(s\,Q K^\top + M)\,V, \quad M_{ij} = 0 \text{ where } |i - j| \le w \text{ "
        r"(causal: } 0 \le i - j < w\text{), else } -\infty"
    ),
    exact_when="the window covers every key",
    traps=(
        "Without a causal mask the window is w keys to either side; with one it is w keys in all.",
        "What lies outside the window is never seen: in a stack of L layers information travels L windows.",
    ),
)
