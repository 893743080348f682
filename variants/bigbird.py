"""BigBird by gathering: each block of queries attends to a handful of blocks of keys, in linear time and memory.

Blocks of queries that see equally many keys are computed together, their keys gathered into one dense batch for SDPA:
nothing is masked and nothing computed in vain, whatever the length or the padding. Queries that see everything take
the keys as they lie. What is gathered at once fits the cache, and the backward gathers anew instead of keeping it. On a
CPU it goes on from what the forward's kernel says of each row; elsewhere it computes the forward of a tile again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from variants._bigbird import PAPER, Parameters, composed, obstacles, reference
from variants._contract import Attend, Complexity, Variant, Workload
from variants._pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

# What is gathered at once: about the second-level cache of a core, enough to fill a GPU.
_GATHERED_BYTES_PER_THREAD = 2 * 1024**2
_GATHERED_BYTES_ON_CUDA = 256 * 1024**2


def build(workload: Workload, parameters: Parameters) -> Attend:
    work = _Work(list(tiles_of(workload, parameters)), workload.softmax_scale, _is_fused(workload))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = _BlockSparse.apply(query, key, value, work)  # type: ignore[no-untyped-call]  # torch's
        return output

    return attend


def _is_fused(workload: Workload) -> bool:
    """Whether torch's kernel for CPUs takes the tiles."""
    return workload.device == "cpu" and workload.head_dim == workload.value_dim


# --- which rows go together ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tile:
    """Blocks of queries, ``(blocks, queries)`` int64, and the keys each sees: ``(blocks, keys)``, or one run for all.

    ``heads`` are the ones of B · Hkv that it is for.
    """

    heads: slice
    queries: Tensor
    keys: Tensor | slice


def tiles_of(workload: Workload, parameters: Parameters) -> Iterator[Tile]:
    """All the work of a workload, each (query, key) pair once. Queries that see no key are in no tile."""
    pattern = Pattern.of(composed(workload, parameters), "cpu")
    if pattern.kept is None:
        everyone = slice(0, workload.batch * workload.kv_heads)
        yield from _cut(_groups(pattern, parameters.block, workload.key_length), everyone, workload)
        return
    groups = {kept: _groups(pattern, parameters.block, kept) for kept in set(pattern.kept.tolist())}
    for item, kept in enumerate(pattern.kept.tolist()):
        heads = slice(item * workload.kv_heads, (item + 1) * workload.kv_heads)
        yield from _cut(groups[kept], heads, workload)


def _groups(pattern: Pattern, block: int, kept: int) -> list[tuple[Tensor, Tensor | slice]]:
    """Queries and keys as in a tile, by how many there are of both, for a sequence of ``kept`` keys."""
    assert pattern.table is not None  # noqa: S101  # a composed mask has one
    everything: list[Tensor] = []
    by_size: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for index, row in enumerate(pattern.table):
        first, last = (
            min(max(position - pattern.offset, 0), pattern.workload.query_length)
            for position in (index * block, (index + 1) * block)
        )
        queries = torch.arange(first, last)
        keys = row.repeat_interleave(block)[:kept].nonzero().flatten()
        if len(keys) == kept:
            everything.append(queries)
        elif len(queries) and len(keys):
            by_size[len(queries), len(keys)].append((queries, keys))
    sparse = [
        (torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])) for rows in by_size.values()
    ]
    dense = torch.cat([torch.arange(0), *everything])[None]
    return [*([(dense, slice(0, kept))] if dense.numel() else []), *sparse]


def _cut(groups: Iterable[tuple[Tensor, Tensor | slice]], heads: slice, workload: Workload) -> Iterator[Tile]:
    """The groups for some heads, in tiles small enough for what may be gathered at once."""
    row_bytes = (workload.head_dim + workload.value_dim) * torch.finfo(getattr(torch, workload.dtype)).bits // 8
    on_cpu = workload.device == "cpu"
    budget = _GATHERED_BYTES_PER_THREAD * torch.get_num_threads() if on_cpu else _GATHERED_BYTES_ON_CUDA
    for queries, keys in groups:
        count = keys.stop if isinstance(keys, slice) else keys.shape[1]
        at_once = max(1, budget // (count * row_bytes))
        for first in range(heads.start, heads.stop, at_once):
            some = slice(first, min(first + at_once, heads.stop))
            blocks = max(1, at_once // (some.stop - some.start))
            for start in range(0, len(queries), blocks):
                rows = queries[start : start + blocks].to(workload.device)
                if isinstance(keys, slice):
                    yield Tile(some, rows, keys)
                else:
                    yield Tile(some, rows, keys[start : start + blocks].to(workload.device))


# --- the attention ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Work:
    """The tiles of a workload, and whether torch's fused kernel for CPUs takes them."""

    tiles: list[Tile]
    scale: float
    fused: bool

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of the rows of a tile, by the fused kernel."""
        output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001  # alone tells both
            query, key, value, scale=self.scale
        )
        return output, logsumexp

    def gradients(
        self, upstream: Tensor, inputs: tuple[Tensor, Tensor, Tensor], known: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, ...]:
        """Of a tile's queries, keys and values; ``known`` is what :meth:`attended` gave, or nothing is."""
        if known is not None:
            given: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(  # noqa: SLF001
                upstream, *inputs, *known, 0.0, False, scale=self.scale
            )
            return given
        with torch.enable_grad():
            query, key, value = parts = tuple(part.detach().requires_grad_() for part in inputs)
            output = scaled_dot_product_attention(query, key, value, scale=self.scale)
        return torch.autograd.grad(output, parts, upstream)


class _BlockSparse(torch.autograd.Function):
    """Attention tile by tile, of a query, key and value as in the contract."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, work: _Work) -> Tensor:
        output = query.new_zeros(*query.shape[:3], value.shape[3])
        folded, into = _Folded.of(query, key, value), _by_key_head(output, key)
        known = []
        for tile in work.tiles:
            if work.fused and any(ctx.needs_input_grad):
                rows, logsumexp = work.attended(*folded.gathered(tile))
                known.append(logsumexp)
            else:
                rows = scaled_dot_product_attention(*folded.gathered(tile), scale=work.scale)
            _put(rows, into, tile)
        ctx.save_for_backward(query, key, value, *([output] if known else []), *known)
        ctx.work = work
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *known = ctx.saved_tensors
        work: _Work = ctx.work
        folded, upstream = _Folded.of(query, key, value), _by_key_head(upstream, key)
        gradient = query.new_zeros(query.shape)
        into = _by_key_head(gradient, key)
        # a block of keys sums over many tiles: in half precision the sum would swallow its parts
        wide = torch.promote_types(key.dtype, torch.float32)
        sums = tuple(torch.zeros(tensor.shape, dtype=wide, device=key.device) for tensor in (key, value))
        outputs, logsumexps = (_by_key_head(known[0], key), known[1:]) if known else (None, [])
        for index, tile in enumerate(work.tiles):
            rows = None if outputs is None else (_rows(outputs, tile), logsumexps[index])
            of_query, *of_keys = work.gradients(_rows(upstream, tile), folded.gathered(tile), rows)
            _put(of_query, into, tile)
            for part, total in zip(of_keys, sums, strict=True):
                _add(part, total.flatten(0, 1), tile)
        return gradient, *(total.to(gradient.dtype) for total in sums), None


@dataclass(frozen=True, slots=True)
class _Folded:
    """Query ``(B·Hkv, G, Nq, D)``: query heads beside the key head that they share; key, value ``(B·Hkv, Nk, D)``."""

    query: Tensor
    key: Tensor
    value: Tensor

    @staticmethod
    def of(query: Tensor, key: Tensor, value: Tensor) -> _Folded:
        if key.stride(-1) != 1 or value.stride(-1) != 1:  # keys may go to the kernel as they lie
            key, value = key.contiguous(), value.contiguous()
        return _Folded(_by_key_head(query, key), key.flatten(0, 1), value.flatten(0, 1))

    def gathered(self, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
        """What a tile works on: ``(heads, blocks, G · queries, D)`` and twice ``(heads, blocks, keys, D)``."""
        key, value = (_keys(tensor[tile.heads], tile.keys) for tensor in (self.key, self.value))
        return _rows(self.query, tile), key, value


def _by_key_head(tensor: Tensor, key: Tensor) -> Tensor:
    """``(B, H, N, D)`` as ``(B·Hkv, G, N, D)``; a view where the strides allow, and of a contiguous tensor always."""
    batch, heads = key.shape[:2]
    return tensor.reshape(batch * heads, -1, *tensor.shape[2:])


def _keys(tensor: Tensor, keys: Tensor | slice) -> Tensor:
    if isinstance(keys, slice):
        return tensor[:, None, keys]
    return tensor.index_select(1, keys.flatten()).view(len(tensor), *keys.shape, -1)


def _rows(tensor: Tensor, tile: Tile) -> Tensor:
    """The rows of a tile, ``(heads, blocks, G · queries, D)``, of ``(B·Hkv, G, Nq, D)``."""
    rows = tensor[tile.heads].index_select(2, tile.queries.flatten())
    return rows.view(*rows.shape[:2], *tile.queries.shape, -1).transpose(1, 2).flatten(2, 3)


def _put(rows: Tensor, into: Tensor, tile: Tile) -> None:
    """The inverse of :func:`_rows`."""
    rows = rows.reshape(*rows.shape[:2], into.shape[1], -1, rows.shape[-1]).transpose(1, 2).flatten(2, 3)
    into[tile.heads].index_copy_(2, tile.queries.flatten(), rows)


def _add(part: Tensor, total: Tensor, tile: Tile) -> None:
    """Add gradients of gathered keys, ``(heads, blocks, keys, D)``, to those of all, ``(B·Hkv, Nk, D)``."""
    if isinstance(tile.keys, slice):
        total[tile.heads, tile.keys] += part[:, 0]
    else:
        total[tile.heads].index_add_(1, tile.keys.flatten(), part.flatten(1, 2).to(total.dtype))


def flops(workload: Workload, parameters: Parameters) -> int:
    """Two products over the pairs in sight, and no other; the backward takes five, and where it must repeats them."""
    pairs = Pattern.of(composed(workload, parameters), "cpu").pairs
    forward = workload.head_dim + workload.value_dim
    backward = 3 * workload.head_dim + 2 * workload.value_dim + (0 if _is_fused(workload) else forward)
    columns = workload.by_mode(forward, backward)
    return 2 * workload.heads * pairs * columns


VARIANT = Variant(
    name="bigbird",
    family="sparse",
    exact=False,
    summary="Every block of queries sees its neighbours, a few global and a few random blocks, gathered for SDPA.",
    paper=PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"O = \operatorname{softmax}(s\,Q K^\top + M)\,V, \quad M_{ij} = 0 \text{ in the window, in global and in "
        r"random blocks, else } -\infty"
    ),
    exact_when="the blocks cover every pair",
    traps=(
        "It looks both ways: no causal mask.",
        "At short lengths most is in sight: at 1k, blocks of 64 cover 55% of all pairs.",
        "Random blocks come from the seed, the same for all heads and items.",
    ),
)
