"""Exact attention in chunks of queries and keys with an online softmax; the backward computes the scores again.

Neither pass holds more than one tile of scores, so that training memory is linear in the length too
(Self-attention Does Not Need O(n²) Memory, arXiv 2112.05682; the backward as in FlashAttention, arXiv 2205.14135).
Shared by ``chunked_mha`` and the variants whose scores are products of something else, or of another scale.

Symbols: B batch, K key-value heads, G query heads that share one, Q and C chunk lengths, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from variants._blocks import Tile
from variants._contract import Attend, Workload
from variants._pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Parameters:
    """Queries and keys of a tile. Larger ones are hardly faster on a CPU, and take more memory than flash at 1k."""

    query_chunk: int = 256
    key_chunk: int = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """What both passes need to know: the tiles that are not hidden, and what to do with their scores."""

    pattern: Pattern
    tiles: list[list[Tile]]

    def scores(self, query: Tensor, key: Tensor, tile: Tile) -> tuple[Tensor, Tensor | None]:
        """Masked scores ``(B, K, G, Q, C)`` of a scaled query chunk ``(B, K, G·Q, D)``, and the capping's slope."""
        group, softcap = self.pattern.workload.group, self.pattern.mask.softcap
        scores = (query @ key.mT).unflatten(2, (group, -1))
        slope = None
        if softcap is not None:
            scores = scores.div_(softcap).tanh_()
            slope = 1 - scores.square()
            scores = scores.mul_(softcap)
        if tile.whole and not self.pattern.mask.alibi:
            return scores, slope
        rows = torch.arange(tile.queries.start, tile.queries.stop, device=self.pattern.device)
        allowed, bias = self.pattern.rows(rows, tile.keys)
        if bias is not None:
            scores += bias.unflatten(1, (-1, group))
        if not tile.whole:
            scores.masked_fill_(~allowed[:, :, None], float("-inf"))
        return scores, slope

    def chunk(self, tensor: Tensor, queries: slice) -> Tensor:
        """Chunk of a tensor over queries, ``(B, H, N, D)`` → ``(B, K, G·Q, D)``, in the dtype of accumulation."""
        grouped = tensor[:, :, queries].unflatten(1, (-1, self.pattern.workload.group))
        return _accumulated(grouped.flatten(2, 3))

    def unchunk(self, tensor: Tensor) -> Tensor:
        """``(B, K, G·Q, D)`` → ``(B, H, Q, D)``."""
        ungrouped: Tensor = tensor.unflatten(2, (self.pattern.workload.group, -1)).flatten(1, 2)
        return ungrouped


class ChunkedAttention(torch.autograd.Function):
    """Query ``(B, H, Nq, D)``, key ``(B, K, Nk, D)``, value ``(B, K, Nk, Dv)`` → ``(B, H, Nq, Dv)``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan) -> Tensor:
        workload = plan.pattern.workload
        output = query.new_zeros(*query.shape[:3], value.shape[-1])
        logsumexp = query.new_full(query.shape[:3], float("inf"), dtype=_accumulation(query.dtype))
        for tiles in plan.tiles:
            if not tiles:
                continue  # nobody here sees anything: zeros, and exp(scores − inf) = 0 in the backward
            queries = tiles[0].queries
            chunk = plan.chunk(query, queries).mul(workload.softmax_scale)
            summed, total, highest = _online_softmax(plan, chunk, key, value, tiles)
            empty = total == 0
            total.masked_fill_(empty, 1)
            output[:, :, queries] = plan.unchunk(summed.div_(total))
            logsumexp[:, :, queries] = plan.unchunk(
                total.log_().add_(highest).masked_fill_(empty, float("inf"))
            ).squeeze(-1)
        ctx.save_for_backward(query, key, value, output, logsumexp)
        ctx.plan = plan
        return output

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, logsumexp = ctx.saved_tensors
        plan: Plan = ctx.plan
        scale, (above,) = plan.pattern.workload.softmax_scale, upstream
        d_query = torch.zeros_like(query)
        d_key, d_value = (torch.zeros_like(tensor, dtype=_accumulation(tensor.dtype)) for tensor in (key, value))
        for tiles in plan.tiles:
            if not tiles:
                continue
            queries = tiles[0].queries
            chunk = plan.chunk(query, queries).mul(scale)
            above_here = plan.chunk(above, queries)
            shift = plan.chunk(logsumexp[..., None], queries)
            delta = (above_here * plan.chunk(output, queries)).sum(dim=-1, keepdim=True)
            d_chunk = torch.zeros_like(chunk)
            for tile in tiles:
                keys, values = _accumulated(key[:, :, tile.keys]), _accumulated(value[:, :, tile.keys])
                scores, slope = plan.scores(chunk, keys, tile)
                weights = scores.flatten(2, 3).sub_(shift).exp_()
                d_value[:, :, tile.keys] += weights.mT @ above_here
                d_scores = (above_here @ values.mT).sub_(delta).mul_(weights)
                del weights, scores
                if slope is not None:
                    d_scores.mul_(slope.flatten(2, 3))
                d_chunk += d_scores @ keys
                d_key[:, :, tile.keys] += d_scores.mT @ chunk
            d_query[:, :, queries] = plan.unchunk(d_chunk.mul_(scale))
        return d_query, d_key.to(key.dtype), d_value.to(value.dtype), None


def _online_softmax(
    plan: Plan, chunk: Tensor, key: Tensor, value: Tensor, tiles: list[Tile]
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ exp(s − m) v ``(B, K, G·Q, Dv)``, Σ exp(s − m) and the maximum m ``(B, K, G·Q, 1)``, over all tiles."""
    summed = chunk.new_zeros(*chunk.shape[:3], value.shape[-1])
    total = chunk.new_zeros(*chunk.shape[:3], 1)
    highest = chunk.new_full((*chunk.shape[:3], 1), torch.finfo(chunk.dtype).min)  # finite: −inf − −inf is NaN
    for tile in tiles:
        scores = plan.scores(chunk, _accumulated(key[:, :, tile.keys]), tile)[0].flatten(2, 3)
        higher = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
        weights = scores.sub_(higher).exp_()
        correction = highest.sub_(higher).exp_()
        total.mul_(correction).add_(weights.sum(dim=-1, keepdim=True))
        summed.mul_(correction).add_(weights @ _accumulated(value[:, :, tile.keys]))
        highest = higher
    return summed, total, highest


def _accumulation(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _accumulated(tensor: Tensor) -> Tensor:
    return tensor.to(_accumulation(tensor.dtype))


def build(workload: Workload, parameters: Parameters) -> Attend:
    pattern = Pattern.of(workload)
    plan = Plan(pattern, pattern.tiles(parameters.query_chunk, parameters.key_chunk))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = ChunkedAttention.apply(query, key, value, plan)  # type: ignore[no-untyped-call]  # torch's
        return output

    return attend


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    chunks = {"query_chunk": parameters.query_chunk, "key_chunk": parameters.key_chunk}
    return [f"{name} must be at least 1, got {size}" for name, size in chunks.items() if size < 1]


def flops(workload: Workload, parameters: Parameters) -> int:
    """Two products over the tiles that are not skipped; five in the backward, where scores are computed again."""
    tiles = Pattern.of(workload, "cpu").tiles(parameters.query_chunk, parameters.key_chunk)
    pairs: int = sum(
        (tile.queries.stop - tile.queries.start) * (tile.keys.stop - tile.keys.start)
        for of_chunk in tiles
        for tile in of_chunk
    )
    head, value = workload.head_dim, workload.value_dim
    columns = workload.by_mode(head + value, 3 * head + 2 * value)
    return 2 * workload.batch * workload.heads * pairs * columns
