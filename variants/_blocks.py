"""Which blocks of a pattern hold anything, and which are seen whole: what kernels skip, and what they need not mask.

From intervals and the block table, never from an N×N mask: O(Nq · Nk / size) time, O(size · Nk / size) memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask

    from variants._pattern import Pattern


@dataclass(frozen=True, slots=True)
class Tile:
    """A chunk of queries and one of keys; ``whole`` where every query of it sees every key of it."""

    queries: slice
    keys: slice
    whole: bool


def tiles(pattern: Pattern, query_size: int, key_size: int) -> list[list[Tile]]:
    """For each chunk of queries, the chunks of keys of which some batch item sees anything."""
    some, every = (blocks.tolist() for blocks in _over_batch(*seen_blocks(pattern, query_size, key_size)))
    queries = _chunks(pattern.workload.query_length, query_size)
    keys = _chunks(pattern.workload.key_length, key_size)
    return [
        [Tile(chunk, keys[k], whole=every[q][k]) for k in range(len(keys)) if some[q][k]]
        for q, chunk in enumerate(queries)
    ]


def _over_batch(some: Tensor, every: Tensor) -> tuple[Tensor, Tensor]:
    return some.any(dim=0), every.all(dim=0)


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def seen_blocks(pattern: Pattern, query_size: int, key_size: int) -> tuple[Tensor, Tensor]:
    """Blocks of which some query sees some key, and of which every query sees every key.

    Two ``(B or 1, ⌈Nq / query_size⌉, ⌈Nk / key_size⌉)`` bool. Blocks that the lengths cut short count by what is there.
    """
    lengths = pattern.workload.query_length, pattern.workload.key_length
    step = key_size if pattern.mask.bigbird is None else math.gcd(key_size, pattern.mask.bigbird.block)
    starts = torch.arange(0, lengths[1], step, device=pattern.device)
    ends = (starts + step).clamp(max=lengths[1])
    some, every = [], []
    for start in range(0, lengths[0], query_size):
        rows = torch.arange(start, min(start + query_size, lengths[0]), device=pattern.device)
        first, last = (bound[..., None] for bound in pattern.interval(rows))
        overlap = torch.minimum(last, ends) - torch.maximum(first, starts)
        seen, whole = overlap > 0, overlap >= ends - starts
        if pattern.table is not None and pattern.mask.bigbird is not None:
            block = pattern.mask.bigbird.block
            listed = pattern.table[(rows + pattern.offset).clamp(min=0) // block][:, starts // block]
            seen, whole = seen & listed, whole & listed
        some.append(_join(seen.any(dim=1), key_size // step, absent=False).any(dim=-1))
        every.append(_join(whole.all(dim=1), key_size // step, absent=True).all(dim=-1))
    return torch.stack(some, dim=1), torch.stack(every, dim=1)


def _join(blocks: Tensor, count: int, *, absent: bool) -> Tensor:
    """``(b, n)`` as ``(b, ⌈n / count⌉, count)``, with ``absent`` behind the end."""
    missing = -blocks.shape[1] % count
    joined: Tensor = pad(blocks, (0, missing), value=absent).unflatten(1, (-1, count))
    return joined


def covered_pairs(pattern: Pattern, query_size: int, key_size: int) -> int:
    """Pairs in blocks that hold anything, summed over the batch, for one head: what a blockwise kernel computes."""
    some, _ = seen_blocks(pattern, query_size, key_size)
    heights = _extents(pattern.workload.query_length, query_size, pattern.device)
    widths = _extents(pattern.workload.key_length, key_size, pattern.device)
    covered = int((some * heights[:, None] * widths).sum())
    return covered if len(some) == pattern.workload.batch else covered * pattern.workload.batch


def flex_block_mask(pattern: Pattern, size: int) -> BlockMask:
    """FlexAttention's block mask of square blocks."""
    from torch.nn.attention.flex_attention import BlockMask

    some, every = seen_blocks(pattern, size, size)
    lengths = pattern.workload.query_length, pattern.workload.key_length
    complete = [_extents(length, size, pattern.device) == size for length in lengths]
    every &= complete[0][:, None] & complete[1]  # kernels skip the bounds check in a "full" block
    return BlockMask.from_kv_blocks(
        *_listed((some & ~every)[:, None]),
        *_listed(every[:, None]),
        BLOCK_SIZE=(size, size),
        mask_mod=pattern.mask_mod(),
        seq_lengths=lengths,
    )


def _extents(length: int, size: int, device: torch.device) -> Tensor:
    """How many positions each block holds, ``(⌈length / size⌉,)``: all ``size`` but perhaps the last."""
    starts = torch.arange(0, length, size, device=device)
    return (length - starts).clamp(max=size)


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Counts and indices (seen ones first, in order) of a boolean block matrix, as FlexAttention takes them."""
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)
