"""Which blocks of a pattern hold anything, and which are seen whole: what kernels skip, and what they need not mask.

From intervals and the block table, never from an N×N mask: O(Nq · Nk / size²) time.
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
    length = pattern.workload.key_length
    step = key_size if pattern.mask.bigbird is None else math.gcd(key_size, pattern.mask.bigbird.block)
    starts = torch.arange(0, length, step, device=pattern.device)
    ends = (starts + step).clamp(max=length)
    some, every = [], []
    for chunk in _chunks(pattern.workload.query_length, query_size):
        rows = torch.arange(chunk.start, chunk.stop, device=pattern.device)
        seen, whole = _seen_by(pattern, rows, starts, ends)
        some.append(_join(seen, key_size // step, absent=False).any(dim=-1))
        every.append(_join(whole, key_size // step, absent=True).all(dim=-1))
    return torch.stack(some, dim=1), torch.stack(every, dim=1)


def _seen_by(pattern: Pattern, rows: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of keys ``starts ≤ j < ends`` of which some, and of which all, of consecutive queries see any, and all.

    A query's interval holds its own position, or what padding and the ends of the keys leave of that: so the intervals
    of neighbours touch, and what several queries see together is one interval again.
    """
    first, last = pattern.interval(rows)
    if pattern.table is None or pattern.mask.bigbird is None:
        return _seen_in_one(first, last, starts, ends)
    block = pattern.mask.bigbird.block
    some = torch.zeros(len(first), len(starts), dtype=torch.bool, device=pattern.device)
    every = ~some
    for row_of_table, here in runs((rows + pattern.offset).clamp(min=0) // block):
        listed = pattern.table[row_of_table, starts // block]
        seen, whole = _seen_in_one(first[:, here], last[:, here], starts, ends)
        some |= seen & listed
        every &= whole & listed
    return some, every


def _seen_in_one(first: Tensor, last: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    empty = last <= first
    lowest = first.masked_fill(empty, int(ends[-1])).amin(dim=1, keepdim=True)
    highest = last.masked_fill(empty, 0).amax(dim=1, keepdim=True)
    whole = (first.amax(dim=1, keepdim=True) <= starts) & (last.amin(dim=1, keepdim=True) >= ends)
    return (lowest < ends) & (highest > starts), whole


def runs(ascending: Tensor) -> list[tuple[int, slice]]:
    """Each number in an ascending row of them, and where it stands."""
    numbers, counts = torch.unique_consecutive(ascending, return_counts=True)
    ends = counts.cumsum(0)
    return [
        (number, slice(end - count, end))
        for number, count, end in zip(numbers.tolist(), counts.tolist(), ends.tolist(), strict=True)
    ]


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
