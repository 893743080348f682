"""A mask bound to a workload: the one definition that drives every backend, the oracle and the pair count.

Apart from BigBird's block table, what a query may see is one interval of keys, ``first[i] ≤ j < last[i]``.
Counting, sampling rows and building block masks all follow from that, without an N×N mask.

Symbols: B batch, H heads, Nq and Nk lengths, R rows. ``s = i + (Nk − Nq) − j``.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from variants._blocks import Tile, flex_block_mask, runs, tiles
from variants._mask import BigBird, Mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask

    from variants._contract import Workload

_FLEX_BLOCK = 128


@dataclass(frozen=True)
class Pattern:
    """``mask`` on ``workload``; tensors are made on ``device`` (the workload's, unless told)."""

    mask: Mask
    workload: Workload
    device: torch.device

    @staticmethod
    def of(workload: Workload, device: torch.device | str | None = None) -> Pattern:
        """The pattern of a workload's own mask."""
        return Pattern(Mask.parse(workload.mask), workload, torch.device(device or workload.device))

    @property
    def offset(self) -> int:
        """What to add to a query index to get its position among the keys."""
        return self.workload.key_length - self.workload.query_length

    @property
    def sees_everything(self) -> bool:
        """Whether every query may see every key (scores may still be changed)."""
        return self.pairs == self.workload.batch * self.workload.query_length * self.workload.key_length

    # --- the definition -------------------------------------------------------------------------------------

    @cached_property
    def document_ids(self) -> Tensor | None:
        """The document of each key, ``(Nk,)`` int64."""
        if self.mask.document is None:
            return None
        lengths = self._document_ends.diff()
        return torch.repeat_interleave(torch.arange(len(lengths), device=self.device), lengths)

    @cached_property
    def _document_ends(self) -> Tensor:
        """Where documents begin, and where the last one ends, ``(documents + 1,)`` int64."""
        lengths = document_lengths(self.mask.document or 1, self.workload.key_length, self.workload.seed)
        return torch.tensor([0, *itertools.accumulate(lengths)], device=self.device)

    @cached_property
    def kept(self) -> Tensor | None:
        """How many keys of each batch item are no padding, ``(B,)`` int64."""
        if self.mask.padding is None:
            return None
        lengths = kept_lengths(self.mask.padding, self.workload.batch, self.workload.key_length, self.workload.seed)
        return torch.tensor(lengths, device=self.device)

    @cached_property
    def table(self) -> Tensor | None:
        """BigBird's blocks of keys per block of positions, ``(blocks, blocks)`` bool."""
        if self.mask.bigbird is None:
            return None
        return bigbird_table(self.mask.bigbird, self.workload.key_length, self.workload.seed).to(self.device)

    def interval(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """First key seen, and the one after the last, per batch item and row: two ``(B or 1, R)`` int64 tensors."""
        length = self.workload.key_length
        position = rows.to(self.device) + self.offset
        first, last = torch.zeros_like(position), torch.full_like(position, length)
        mask = self.mask
        if mask.is_causal:
            last = torch.minimum(last, position + 1)
        if mask.window is not None:
            first = torch.maximum(first, position - mask.window + 1)
        if mask.band is not None:
            first, last = torch.maximum(first, position - mask.band), torch.minimum(last, position + mask.band + 1)
        if mask.prefix is not None:
            last = torch.minimum(last, torch.clamp(position + 1, min=mask.prefix))
        if self.document_ids is not None:
            own = self.document_ids[position.clamp(min=0)]
            first = torch.maximum(first, self._document_ends[own])
            last = torch.minimum(last, self._document_ends[own + 1])
        if self.document_ids is not None or self.table is not None:
            last = last.masked_fill(position < 0, 0)  # before the first key there is no document and no block
        if self.kept is None:
            return first[None], last[None]
        return first.expand(len(self.kept), -1), torch.minimum(last, self.kept[:, None])

    # --- counting and sampling ------------------------------------------------------------------------------

    @cached_property
    def pairs(self) -> int:
        """Exactly how many (query, key) pairs attend, summed over the batch, for one head."""
        rows = torch.arange(self.workload.query_length, device=self.device)
        first, last = self.interval(rows)
        if self.table is None or self.mask.bigbird is None:
            counted = int((last - first).clamp(min=0).sum())
        else:
            counted = _pairs_in_blocks(first, last, (rows + self.offset).clamp(min=0), self.table, self.mask.bigbird)
        return counted if len(first) == self.workload.batch else counted * self.workload.batch

    def rows(self, indices: Tensor, keys: slice | None = None) -> tuple[Tensor, Tensor | None]:
        """What the given queries may see, ``(B or 1, 1, R, K)`` bool, and what is added, ``(1, H, R, K)`` or None.

        K is the length of ``keys``, a slice with start and stop; all keys where it is not given.
        """
        indices, columns = indices.to(self.device), self._columns(keys)
        first, last = self.interval(indices)
        allowed = (columns >= first[..., None]) & (columns < last[..., None])
        if self.table is not None and self.mask.bigbird is not None:
            block = self.mask.bigbird.block
            allowed &= self.table[(indices + self.offset).clamp(min=0) // block][:, columns // block]
        return allowed[:, None], self.bias(indices, keys)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        """:meth:`rows` of every query. Takes O(Nq · Nk) memory."""
        return self.rows(torch.arange(self.workload.query_length, device=self.device))

    def bias(self, indices: Tensor, keys: slice | None = None) -> Tensor | None:
        """What ALiBi adds to the scores of the given queries, ``(1, H, R, K)`` float32, or None."""
        if not self.mask.alibi:
            return None
        distance = (indices.to(self.device)[:, None] + self.offset - self._columns(keys)).abs()
        return (-self.slopes[:, None, None] * distance)[None]

    def _columns(self, keys: slice | None) -> Tensor:
        keys = keys or slice(0, self.workload.key_length)
        return torch.arange(keys.start, keys.stop, device=self.device)

    def tiles(self, query_size: int, key_size: int) -> list[list[Tile]]:
        """For each chunk of queries, the chunks of keys of which it sees anything. No N×N mask is built."""
        return tiles(self, query_size, key_size)

    @cached_property
    def slopes(self) -> Tensor:
        """ALiBi's slope of each head, ``(H,)`` float32."""
        return torch.tensor(alibi_slopes(self.workload.heads), device=self.device)

    # --- FlexAttention --------------------------------------------------------------------------------------

    def mask_mod(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """FlexAttention's predicate ``(b, h, q_idx, kv_idx) -> bool``; captures small tensors only."""
        mask, offset = self.mask, self.offset
        documents, kept, table = self.document_ids, self.kept, self.table

        def allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            del h
            position = i + offset
            s = position - j
            seen = j >= 0
            if mask.is_causal:
                seen = seen & (s >= 0)
            if mask.window is not None:
                seen = seen & (s < mask.window)
            if mask.band is not None:
                seen = seen & (s <= mask.band) & (s >= -mask.band)
            if mask.prefix is not None:
                seen = seen & ((j < mask.prefix) | (s >= 0))
            if documents is not None:
                seen = seen & (position >= 0) & (documents[position.clamp(min=0)] == documents[j])
            if kept is not None:
                seen = seen & (j < kept[b])
            if table is not None and mask.bigbird is not None:
                block = mask.bigbird.block
                seen = seen & (position >= 0) & table[position.clamp(min=0) // block, j // block]
            return seen

        return allowed

    def score_mod(self) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None:
        """FlexAttention's ``(score, b, h, q_idx, kv_idx) -> score``, or None where scores stay as they are."""
        if not self.mask.changes_scores:
            return None
        softcap, offset = self.mask.softcap, self.offset
        slopes = self.slopes if self.mask.alibi else None

        def changed(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            del b
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            if slopes is not None:
                score = score - slopes[h] * (i + offset - j).abs()
            return score

        return changed

    def block_mask(self, size: int | None = None) -> BlockMask:
        """FlexAttention's block mask, of BigBird's own blocks where there are any, else of 128."""
        own = _FLEX_BLOCK if self.mask.bigbird is None else self.mask.bigbird.block
        return flex_block_mask(self, size or own)

    # --- scaled_dot_product_attention -----------------------------------------------------------------------

    @property
    def is_top_left_causal(self) -> bool:
        """Whether this is exactly what kernels call ``is_causal``: causal by index from the start of both."""
        return self.mask.terms == {"causal"} and self.workload.is_square

    def sdpa(self) -> tuple[Tensor | None, bool]:
        """``attn_mask`` and ``is_causal``: neither if nothing is hidden, the flag where it is meant, else a dense mask.

        The mask is ``(B or 1, 1, Nq, Nk)`` bool, or with ALiBi ``(B or 1, H, Nq, Nk)`` in the workload's dtype.

        Raises:
            ValueError: a soft cap, for which there is no argument.

        """
        if self.mask.softcap is not None:
            raise ValueError("scaled_dot_product_attention has no soft cap")
        if self.mask.alibi:
            allowed, bias = self.dense()
            assert bias is not None  # noqa: S101  # ALiBi has one
            return bias.to(getattr(torch, self.workload.dtype)).masked_fill(~allowed, float("-inf")), False
        if self.sees_everything:
            return None, False
        if self.is_top_left_causal:
            return None, True
        return self.dense()[0], False


def _pairs_in_blocks(first: Tensor, last: Tensor, position: Tensor, table: Tensor, bigbird: BigBird) -> int:
    """Pairs inside both the intervals ``(b, Nq)`` and the listed blocks of the queries' ascending ``position``."""
    starts = torch.arange(len(table), device=table.device) * bigbird.block
    total = 0
    for block, here in runs(position // bigbird.block):
        listed = starts[table[block]]
        low = torch.maximum(first[:, here, None], listed)
        high = torch.minimum(last[:, here, None], listed + bigbird.block)
        total += int((high - low).clamp(min=0).sum())
    return total


def document_lengths(documents: int, length: int, seed: int) -> list[int]:
    """``documents`` lengths (at most ``length``) that sum to ``length``; log-normal, so a few are long."""
    documents = min(documents, length)
    draw = random.Random(f"document:{documents}:{length}:{seed}")  # noqa: S311  # no secret
    weights = list(itertools.accumulate(draw.lognormvariate(0, 1) for _ in range(documents)))
    ends = [round(weight / weights[-1] * (length - documents)) for weight in weights]
    return [1 + end - start for start, end in itertools.pairwise([0, *ends])]


def kept_lengths(fraction: float, batch: int, length: int, seed: int) -> list[int]:
    """Keys kept per batch item: uniform within half the way to 0 or 1 around ``fraction``, at least one."""
    draw = random.Random(f"padding:{fraction:g}:{length}:{seed}")  # noqa: S311  # no secret
    spread = min(fraction, 1 - fraction) / 2
    return [max(1, round(length * draw.uniform(fraction - spread, fraction + spread))) for _ in range(batch)]


def bigbird_table(bigbird: BigBird, length: int, seed: int) -> Tensor:
    """Blocks of keys per block of queries, ``(blocks, blocks)`` bool, the same for every head.

    Window of three blocks; the first ⌈G/2⌉ and the last ⌊G/2⌋ blocks see and are seen by all; R further blocks
    per row, drawn without replacement from the rest (arXiv 2007.14062, section 2 and appendix D).
    """
    count = -(-length // bigbird.block)
    index = torch.arange(count)
    table = (index[:, None] - index).abs() <= 1
    head = -(-bigbird.global_blocks // 2)
    is_global = (index < head) | (index >= count - (bigbird.global_blocks - head))
    table |= is_global | is_global[:, None]
    draw = random.Random(f"bigbird:{bigbird}:{length}:{seed}")  # noqa: S311  # no secret
    for row in range(count):
        rest = (~table[row]).nonzero().flatten().tolist()
        table[row, draw.sample(rest, min(bigbird.random_blocks, len(rest)))] = True
    return table


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi's slopes: 2^(−8i/n) for a power of two n, and every other one of 2n for the rest (arXiv 2108.12409)."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    return slopes + [2.0 ** (-8 * i / (2 * power)) for i in range(1, 2 * (heads - power) + 1, 2)]
