"""Attention whose weights are products of features: o_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j), in linear time.

Sums over keys are outer products φ(k_j) v_jᵀ in one state, whatever the length. A causal query must not see them all,
so that chunks are scanned: within a chunk pairs are computed, what came before is read from the state. The backward
scans twice, forwards for the queries and backwards for keys and values, and neither pass keeps a state per position.

Features that span many orders of magnitude come divided by exp(shift), and causal ones each by the exp(shift) of its
own position: the largest so far, since that of the whole sequence would depend on the future.

Symbols: B batch, K key-value heads, G query heads that share one, N length, C positions of a chunk, M features,
E = Dv + 1 columns of an extended value. States are ``(B, K, 1, M, E)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from variants._mask import Mask
from variants._pattern import Pattern

if TYPE_CHECKING:
    from torch import Tensor

    from variants._contract import Workload

CHUNK = 128


class Features(NamedTuple):
    """``values`` ``(B, heads, N, M)``, to be multiplied by exp(``shift``), constants ``(B, heads, N)``, or by one."""

    values: Tensor
    shift: Tensor | None = None


def accumulated(tensor: Tensor) -> Tensor:
    """In float32 at least: sums over a whole sequence swallow their parts in half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def hidden_keys(workload: Workload) -> Tensor | None:
    """Which keys are padding, ``(B, 1, N, 1)`` bool; None without padding."""
    kept = Pattern.of(workload).kept
    if kept is None:
        return None
    return (torch.arange(workload.key_length, device=kept.device) >= kept[:, None])[:, None, :, None]


def obstacles(workload: Workload, *, name: str) -> list[str]:
    """Masks that a sum over all keys so far cannot honour: all but causal and padding."""
    terms = Mask.parse(workload.mask).unsupported("causal", "padding")
    return [f"{term}: {_why_not(term.partition(':')[0], name)}" for term in terms]


def _why_not(term: str, name: str) -> str:
    match term:
        case "softcap" | "alibi":
            return f"{name} never has a score per pair that could be changed"
        case _:
            return f"{name} sums up all keys, or all so far, in one state, from which none can be left out"


# --- the attention --------------------------------------------------------------------------------------------------


def attention(query: Features, key: Features, value: Tensor, *, workload: Workload, hidden: Tensor | None) -> Tensor:
    """``(B, H, Nq, Dv)`` of ``(B, H, Nq, M)`` and ``(B, K, Nk, M)`` features; zeros where a query sees no key.

    A query's own shift cancels, and is not asked for. Without a causal mask, a head must have one shift for all keys.
    """
    ones = value.new_ones(*value.shape[:3], 1)
    extended = torch.cat([value, ones], dim=3)  # the last column sums up the weights
    if hidden is not None:
        extended = extended.masked_fill(hidden, 0)
    queries, keys, values = (
        query.values.unflatten(1, (workload.kv_heads, workload.group)),
        key.values[:, :, None],
        extended[:, :, None],
    )
    if Mask.parse(workload.mask).causal:
        shift = None if key.shift is None else key.shift[:, :, None]
        summed = causal_sums(queries, keys, values, shift)
    else:
        summed = queries @ (keys.mT @ values)
    summed = summed.flatten(1, 2)
    total = summed[..., -1:]
    return summed[..., :-1] / total.masked_fill(total == 0, 1)


def causal_sums(query: Tensor, key: Tensor, value: Tensor, shift: Tensor | None) -> Tensor:
    """Σ (φ(q_i)·φ(k_j)) v_j over the keys that query i may see, the last one all: ``(B, K, G, Nq, E)``.

    Query ``(B, K, G, Nq, M)``, key ``(B, K, 1, Nk, M)``, value ``(B, K, 1, Nk, E)``; ``shift`` ``(B, K, 1, Nk)`` must
    not decrease, and the sums are divided by exp(shift) of the last key seen.
    """
    before = key.shape[3] - query.shape[3]  # keys that all queries see, or (negative) queries that see no key
    blind = max(-before, 0)
    before = max(before, 0)
    key_before, key = key[..., :before, :], key[..., before:, :]
    value_before, value = value[..., :before, :], value[..., before:, :]
    start = None
    if shift is not None:
        start = shift[..., max(before - 1, 0), None]
        key_before = key_before * (shift[..., :before] - start).exp()[..., None]
        shift = shift[..., before:]
    state = key_before.mT @ value_before
    sums: Tensor = _Scan.apply(query[..., blind:, :], key, value, state, _Shift(shift, start))  # type: ignore[no-untyped-call]  # torch's
    return pad(sums, (0, 0, blind, 0)) if blind else sums


# --- the scan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What of the weights of a chunk comes from shifts; without any, all but ``within`` is one.

    ``within`` ``(…, C, C)`` of pairs, ``entering`` ``(…, C, 1)`` of queries and the state before, ``leaving``
    ``(…, C, 1)`` of keys and the state after, ``lasting`` ``(…, 1, 1)`` of the state before and the one after.
    """

    positions: slice
    within: Tensor
    entering: Tensor | float = 1.0
    leaving: Tensor | float = 1.0
    lasting: Tensor | float = 1.0


@dataclass(frozen=True, slots=True)
class _Shift:
    """The shift of each position ``(B, K, 1, N)`` and of the state before the first ``(B, K, 1, 1)``; both or none."""

    positions: Tensor | None
    before: Tensor | None

    def chunks(self, length: int, like: Tensor) -> list[_Chunk]:
        seen = torch.ones(CHUNK, CHUNK, dtype=like.dtype, device=like.device).tril_()
        chunks = []
        before = self.before
        for first in range(0, length, CHUNK):
            chunk = _Chunk(slice(first, min(first + CHUNK, length)), seen[: length - first, : length - first])
            if self.positions is not None and before is not None:
                here = self.positions[..., chunk.positions]
                last = here[..., -1:]
                chunk = replace(
                    chunk,
                    within=(here[..., None, :] - here[..., None]).clamp_(max=0).exp_().mul_(chunk.within),
                    entering=(before - here).exp_()[..., None],
                    leaving=(here - last).exp_()[..., None],
                    lasting=(before - last).exp_()[..., None],
                )
                before = last
            chunks.append(chunk)
        return chunks


class _Scan(torch.autograd.Function):
    """Query ``(B, K, G, N, M)``, key ``(B, K, 1, N, M)``, value ``(B, K, 1, N, E)``, state → ``(B, K, G, N, E)``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        state, shift = rest
        ctx.save_for_backward(query, key, value, state)
        ctx.shift = shift
        sums = query.new_empty(*query.shape[:-1], value.shape[-1])
        for chunk in shift.chunks(query.shape[-2], query):
            q, k, v = _at(chunk, query, key, value)
            pairs = (q @ k.mT).mul_(chunk.within)
            sums[..., chunk.positions, :] = (pairs @ v).add_(_times(q @ state, chunk.entering))
            state = _after(state, k, v, chunk)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, state = ctx.saved_tensors
        d_query, d_key, d_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        chunks = ctx.shift.chunks(query.shape[-2], query)
        for chunk in chunks:
            k, v, above = _at(chunk, key, value, upstream)
            d_pairs = (above @ v.mT).mul_(chunk.within)
            d_query[..., chunk.positions, :] = (d_pairs @ k).add_(_times(above @ state.mT, chunk.entering))
            state = _after(state, k, v, chunk)
        d_state = torch.zeros_like(state)
        for chunk in reversed(chunks):
            q, k, v, above = _at(chunk, query, key, value, upstream)
            d_pairs = (above @ v.mT).mul_(chunk.within)
            pairs = (q @ k.mT).mul_(chunk.within)
            d_key[..., chunk.positions, :] = _over_group(d_pairs.mT @ q) + _times(v @ d_state.mT, chunk.leaving)
            d_value[..., chunk.positions, :] = _over_group(pairs.mT @ above) + _times(k @ d_state, chunk.leaving)
            d_state = _times(d_state, chunk.lasting) + _over_group(_times(q, chunk.entering).mT @ above)
        return d_query, d_key, d_value, d_state, None


def _at(chunk: _Chunk, *tensors: Tensor) -> list[Tensor]:
    return [tensor[..., chunk.positions, :] for tensor in tensors]


def _after(state: Tensor, key: Tensor, value: Tensor, chunk: _Chunk) -> Tensor:
    return _times(state, chunk.lasting) + _times(key, chunk.leaving).mT @ value


def _times(tensor: Tensor, factor: Tensor | float) -> Tensor:
    return tensor * factor if isinstance(factor, torch.Tensor) else tensor


def _over_group(tensor: Tensor) -> Tensor:
    """Summed over the query heads that share a key head."""
    return tensor if tensor.shape[2] == 1 else tensor.sum(dim=2, keepdim=True)


# --- the formula and its cost ---------------------------------------------------------------------------------------


def reference_rows(query: Tensor, key: Tensor, value: Tensor, *, workload: Workload, rows: Tensor) -> Tensor:
    """The formula as written: all weights φ(Q)φ(K)ᵀ of some rows, ``query`` being theirs. All of H heads."""
    allowed, _ = Pattern.of(workload, query.device).rows(rows)
    weights = (query @ key.mT).masked_fill(~allowed, 0)
    total = weights.sum(dim=-1, keepdim=True)
    return weights @ value / total.masked_fill(total == 0, 1)


def forward_flops(workload: Workload, features: int) -> int:
    """Products of the forward, after the features: states and reading them, and pairs within chunks where causal."""
    columns = workload.value_dim + 1
    states = workload.kv_heads * workload.key_length + workload.heads * workload.query_length
    pairs = workload.heads * _pairs(workload) * (features + columns)
    return 2 * workload.batch * (states * features * columns + pairs)


def backward_flops(workload: Workload, features: int) -> int:
    """Two products for each of the forward; causal scans compute pairs and states again."""
    if not Mask.parse(workload.mask).causal:
        return 2 * forward_flops(workload, features)
    columns = workload.value_dim + 1
    square = min(workload.query_length, workload.key_length)
    before = workload.key_length - square
    per_head = 2 * square * features * columns
    per_key_head = (3 * square + 2 * before) * features * columns
    pairs = _pairs(workload) * (3 * features + 3 * columns)
    return 2 * workload.batch * (workload.heads * (per_head + pairs) + workload.kv_heads * per_key_head)


def _pairs(workload: Workload) -> int:
    """Pairs of one head that are computed as such, hidden ones too."""
    if not Mask.parse(workload.mask).causal:
        return 0
    whole, rest = divmod(min(workload.query_length, workload.key_length), CHUNK)
    return whole * CHUNK**2 + rest**2
