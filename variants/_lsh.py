"""Locality-sensitive hashing as the Reformer has it (arXiv 2001.04451): buckets, sorting, chunks, who is in sight.

Every position falls into a bucket, positions are sorted by bucket and cut into chunks, and a query sees its own chunk
and the one before; the first looks back to the last. That makes a round; there are several, with other rotations.
Padding has a bucket of its own behind the others and is cut off: it moves no chunk.

Symbols: B batch, H heads, G heads worked on together, N length, L positions that are no padding, D head dim, R rounds,
M bucket size, C chunks of the G heads, W keys that a chunk sees: 2M, or M where there is no other chunk.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from variants._contract import Workload
from variants._mask import Mask
from variants._pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

HIDDEN = -1e30
"""The score of a pair out of sight: finite, so that rows which see nothing make no NaN."""

_CPU_PIECE = 1 << 18  # numbers held at once: what a core's cache holds
_PIECE = 1 << 23  # elsewhere, where launches are dear
_CHUNKS_IN_SIGHT = 2


@dataclass(frozen=True, slots=True)
class Parameters:
    """Length of a chunk, which is also the mean size of a bucket, and rounds of hashing.

    Eight rounds: with them the paper finds LSH attention on a par with full attention (its figure 4).
    """

    bucket_size: int = 64
    hashes: int = 8


@dataclass(frozen=True, slots=True)
class Group:
    """Some heads of one batch item, worked on together, and how many of its positions are no padding."""

    item: int
    heads: slice
    length: int

    def of(self, tensor: Tensor) -> Tensor:
        """Its part ``(G, L, …)`` of a tensor ``(B, H, N, …)``, contiguous, in the dtype of accumulation."""
        return tensor[self.item, self.heads, : self.length].to(accumulation(tensor.dtype)).contiguous()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known before the inputs. ``lengths`` has the positions of each batch item that are no padding."""

    workload: Workload
    parameters: Parameters
    causal: bool
    lengths: list[int]

    @staticmethod
    def of(workload: Workload, parameters: Parameters) -> Plan:
        kept = Pattern.of(workload, "cpu").kept
        lengths = [workload.query_length] * workload.batch if kept is None else kept.tolist()
        return Plan(workload, parameters, Mask.parse(workload.mask).is_causal, lengths)

    @property
    def buckets(self) -> int:
        """One per chunk of N positions; even, since a rotation gives pairs of opposite ones."""
        chunks = self.chunks(self.workload.query_length)
        return chunks + chunks % 2

    def size(self, length: int) -> int:
        """Positions of a chunk."""
        return min(self.parameters.bucket_size, length)

    def chunks(self, length: int) -> int:
        return -(-length // self.parameters.bucket_size)

    def hides(self, length: int) -> bool:
        """Whether anything is out of sight in a round; if not, one round in any order is as good as all."""
        return self.chunks(length) > _CHUNKS_IN_SIGHT

    def rounds(self, length: int) -> int:
        """Rounds that are worth their while."""
        return self.parameters.hashes if self.hides(length) else 1

    def pairs(self, length: int) -> int:
        """Scores of one head in one round."""
        chunks = self.chunks(length)
        return chunks * min(chunks, _CHUNKS_IN_SIGHT) * self.size(length) ** 2

    def groups(self, device: torch.device) -> Iterator[Group]:
        """All heads of all items, as many together as fill a piece, at least one."""
        for item, length in enumerate(self.lengths):
            step = max(1, piece_size(device) // self.pairs(length))
            for first in range(0, self.workload.heads, step):
                yield Group(item, slice(first, min(first + step, self.workload.heads)), length)


def piece_size(device: torch.device) -> int:
    """How many scores (or other such intermediate numbers) to hold at once."""
    return _CPU_PIECE if device.type == "cpu" else _PIECE


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """What to compute in: half precision in float32."""
    return torch.promote_types(dtype, torch.float32)


# --- which round sorts what where ---------------------------------------------------------------------------


def drawn_rotations(plan: Plan) -> Tensor:
    """The random projections, ``(H, D, R, buckets / 2)`` float32; with more rounds the first ones stay.

    Seeded by the workload's seed, but not with that number itself: the inputs may have been drawn with it.
    """
    workload = plan.workload
    seed = random.Random(f"reformer_lsh:{workload.seed}").getrandbits(63)  # noqa: S311  # no secret
    shape = (plan.parameters.hashes, workload.heads, workload.head_dim, plan.buckets // 2)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).permute(1, 2, 0, 3).contiguous()


def hashed(x: Tensor, rotations: Tensor) -> Tensor:
    """argmax([xR; −xR]) of ``(G, L, D)`` vectors in every round: ``(R, G, L)`` int64."""
    heads, length, _ = x.shape
    rounds, half = rotations.shape[2:]
    buckets = torch.empty(rounds, heads, length, dtype=torch.int64, device=x.device)
    step = max(1, piece_size(x.device) // (rounds * half))
    for head, start in itertools.product(range(heads), range(0, length, step)):
        rows = slice(start, start + step)
        rotated = (x[head, rows] @ rotations[head].flatten(1).to(x.dtype)).unflatten(1, (rounds, half))
        best = rotated.abs().argmax(dim=-1, keepdim=True)
        buckets[:, head, rows] = (best + half * (rotated.gather(-1, best) < 0)).squeeze(-1).mT
    return buckets


def route(query: Tensor, key: Tensor, *, workload: Workload, parameters: Parameters) -> Tensor:
    """The bucket of every position in every round, ``(B, H, R, N)`` int64. Padding has a last bucket of its own."""
    del key
    plan = Plan.of(workload, parameters)
    rotations = drawn_rotations(plan).to(query.device)
    buckets = torch.full((*query.shape[:2], parameters.hashes, query.shape[2]), plan.buckets, device=query.device)
    for group in plan.groups(query.device):
        x = group.of(query.detach())
        buckets[group.item, group.heads, :, : group.length] = hashed(x, rotations[group.heads]).transpose(0, 1)
    return buckets


def sorted_positions(x: Tensor, rotations: Tensor, plan: Plan) -> Tensor:
    """Positions of ``(G, L, D)`` vectors by bucket, and in order within one, for each round: ``(rounds, G, L)``."""
    heads, length, _ = x.shape
    if not plan.hides(length):
        return torch.arange(length, device=x.device).expand(1, heads, -1)
    return torch.sort(hashed(x, rotations), dim=-1, stable=True).indices


# --- one round ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """One sorting of G heads into C chunks. Rows are those of ``(G · L, …)`` tables.

    ``queries`` ``(C, M)`` and ``keys`` ``(C, W)`` are rows, any row where a head's last chunk is not full. ``slots``
    ``(G · L,)`` tells where each row went. A key whose ``key_times`` ``(C, 1, W)`` is not before ``query_times``
    ``(C, M, 1)`` is out of sight. ``query_places`` ``(r, C, M, 1)`` and ``key_places`` ``(r, C, 1, W)`` say where the r
    rounds before had them: a difference up to ``reach`` was in sight there.
    """

    queries: Tensor
    keys: Tensor
    slots: Tensor
    query_times: Tensor | None
    key_times: Tensor | None
    query_places: Tensor
    key_places: Tensor
    reach: int

    def hide(self, scores: Tensor, piece: slice) -> None:
        """Put pairs that are not to count out of the way, in ``scores`` ``(c, M, W)`` of some of the chunks.

        In arithmetic throughout, on few bits where possible: on a CPU that is ten times faster than boolean masks.
        """
        if len(self.query_places):
            nearest = self.query_places[0, piece] - self.key_places[0, piece]
            further = torch.empty_like(nearest)
            for query, key in zip(self.query_places[1:, piece], self.key_places[1:, piece], strict=True):
                torch.minimum(nearest, torch.sub(query, key, out=further), out=nearest)
            scores.add_(nearest.le_(self.reach), alpha=HIDDEN)
        if self.query_times is not None and self.key_times is not None:
            query, key = self.query_times[piece], self.key_times[piece]
            late = scores.new_empty(torch.broadcast_shapes(query.shape, key.shape))
            scores.add_(torch.ge(key, query, out=late), alpha=HIDDEN)
        own_chunk = scores.shape[2] - scores.shape[1]
        scores.diagonal(own_chunk, 1, 2).fill_(HIDDEN)  # a position does not see itself


def rounds(order: Tensor, plan: Plan, dtype: torch.dtype) -> Iterator[Round]:
    """The rounds that sort positions to ``order``, ``(rounds, G, L)``; times are of ``dtype``."""
    _, heads, length = order.shape
    size, chunks = plan.size(length), plan.chunks(length)
    spare = chunks * size - length
    first_row = torch.arange(0, heads * length, length, device=order.device)[:, None]
    first_slot = torch.arange(0, heads * chunks * size, chunks * size, device=order.device)[:, None]
    slots = torch.empty_like(order).scatter_(2, order, torch.arange(length, device=order.device).expand_as(order))
    places, reach = on_a_circle(slots.flatten(1) // size, chunks)
    for number, positions in enumerate(order):
        rows = pad(positions, (0, spare)) + first_row
        key_times = query_times = None
        if plan.causal or spare:
            times = pad(positions.to(dtype), (0, spare), value=torch.inf).view(heads, chunks, size)
            key_times = _with_look_back(times)[:, None]
            seen_until = times if plan.causal else torch.full_like(times[..., :1], torch.inf)
            query_times = seen_until.flatten(0, 1)[..., None]
        earlier = places[:number, rows.flatten()].view(number, heads, chunks, size)
        yield Round(
            queries=rows.view(heads * chunks, size),
            keys=_with_look_back(rows.view(heads, chunks, size)),
            slots=(slots[number] + first_slot).flatten(),
            query_times=query_times,
            key_times=key_times,
            query_places=(earlier ^ torch.iinfo(earlier.dtype).min).flatten(1, 2)[..., None],
            key_places=_with_look_back(earlier)[..., None, :],
            reach=reach,
        )


def on_a_circle(chunk: Tensor, chunks: int) -> tuple[Tensor, int]:
    """Where chunks lie on a circle, and how far a query sees: ``(place_q ^ least) − place_k ≤ reach``.

    The circle is an 8-bit integer, wider where there are many chunks, so that the look-back of the first chunk to the
    last is a step like any other. Chunks lie on it evenly, a query sees up to one step back, ⌈256 / chunks⌉, and
    subtraction wraps. Flipping the highest bit lets signed differences ascend from the least number, as unsigned ones
    do from 0.
    """
    dtype = next(dtype for dtype in (torch.int8, torch.int16, torch.int32) if 2 * chunks <= _circle(dtype))
    circle, least = _circle(dtype), torch.iinfo(dtype).min
    return (chunk * circle // chunks + least).to(dtype), -(-circle // chunks) + least


def _circle(dtype: torch.dtype) -> int:
    return 1 << torch.iinfo(dtype).bits


def _with_look_back(slots: Tensor) -> Tensor:
    """What a chunk sees, from what is in its own slots: ``(…, G, chunks, M)`` → ``(…, C, W)``."""
    if slots.shape[-2] > 1:
        slots = torch.cat([slots.roll(1, dims=-2), slots], dim=-1)
    return slots.flatten(-3, -2)


# --- the same, dense ------------------------------------------------------------------------------------------


def in_sight(buckets: Tensor, rows: Tensor, plan: Plan) -> Tensor:
    """Whom the given positions meet in any round, ``(B, H, rows, N)`` bool, from buckets ``(B, H, R, N)``."""
    slots = buckets.argsort(dim=-1, stable=True).argsort(dim=-1)  # the inverse of a permutation
    lengths = torch.tensor(plan.lengths, device=buckets.device)[:, None, None]
    chunks = -(-lengths // plan.parameters.bucket_size)
    chunk = (slots // plan.parameters.bucket_size).unbind(2)
    seen = torch.zeros(*buckets.shape[:2], len(rows), buckets.shape[3], dtype=torch.bool, device=buckets.device)
    for of_all in chunk:
        back = of_all[:, :, rows, None] - of_all[:, :, None]
        seen |= (back == 0) | (back % chunks[..., None] == 1 % chunks[..., None])
    return seen & (rows < lengths)[..., None]
