"""Masked scores of some queries at a time, for variants that look at all scores and keep few.

Scores are made in float32 at least, so that half precision does not tie keys that differ.

Symbols: B batch, H heads, Hkv key heads, G query heads that share one, C queries of a chunk, Nk keys, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from variants._drawn import accumulated
from variants._pattern import Pattern

if TYPE_CHECKING:
    from torch import Tensor

    from variants._contract import Workload

_CHUNK = 256


@dataclass(frozen=True)
class Scores:
    """The scores of a workload under its mask, scaled."""

    pattern: Pattern

    @staticmethod
    def of_workload(workload: Workload) -> Scores:
        return Scores(Pattern.of(workload))

    @property
    def chunks(self) -> list[slice]:
        length = self.pattern.workload.query_length
        return [slice(start, min(start + _CHUNK, length)) for start in range(0, length, _CHUNK)]

    @cached_property
    def some_see_nothing(self) -> bool:
        """Whether there are queries with no key in sight."""
        chunks = (torch.arange(chunk.start, chunk.stop) for chunk in self.chunks)
        return not all(bool(self.pattern.rows(chunk)[0].any(dim=-1).all()) for chunk in chunks)

    def of(self, query: Tensor, key: Tensor, queries: slice) -> Tensor:
        """``(B, H, C, Nk)``, −inf where hidden, of query ``(B, H, Nq, D)`` and key ``(B, Hkv, Nk, D)``."""
        pattern, workload = self.pattern, self.pattern.workload
        scores: Tensor = self.grouped(query, queries).mul_(workload.softmax_scale) @ accumulated(key).mT
        scores = self.by_head(scores)
        if pattern.mask.softcap is not None:
            scores.div_(pattern.mask.softcap).tanh_().mul_(pattern.mask.softcap)
        if pattern.sees_everything and not pattern.mask.alibi:
            return scores
        allowed, bias = pattern.rows(torch.arange(queries.start, queries.stop, device=pattern.device))
        if bias is not None:
            scores += bias
        return scores.masked_fill_(~allowed, float("-inf"))

    def slope(self, scores: Tensor, keys: Tensor, queries: slice, softcap: float) -> Tensor:
        """How much capping lets through of a change of some ``scores`` from :meth:`of`, those of ``keys``."""
        rows = torch.arange(queries.start, queries.stop, device=self.pattern.device)
        bias = self.pattern.bias(rows)
        if bias is not None:
            scores = scores - bias.to(scores.dtype).expand(len(keys), -1, -1, -1).gather(-1, keys)
        slope: Tensor = 1 - (scores / softcap).square()
        return slope.masked_fill_(scores.isneginf(), 0)

    def grouped(self, tensor: Tensor, queries: slice) -> Tensor:
        """A copy of a chunk of ``(B, H, Nq, …)`` as ``(B, Hkv, G·C, …)``: heads that share a key in one matrix."""
        workload = self.pattern.workload
        chunk = accumulated(tensor[:, :, queries]).clone(memory_format=torch.contiguous_format)
        return chunk.view(workload.batch, workload.kv_heads, -1, tensor.shape[3])

    def by_head(self, tensor: Tensor) -> Tensor:
        """``(B, Hkv, G·C, …)`` as ``(B, H, C, …)``."""
        return tensor.view(self.pattern.workload.batch, self.pattern.workload.heads, -1, tensor.shape[3])
