"""Linear Transformers as fast weight programmers (arXiv 2102.11174): keys write values into a matrix, queries read it.

``sum`` adds each outer product v_t φ(k_t)ᵀ and divides what is read by the sum of all keys so far: causal linear
attention. ``delta`` first reads what the key already holds and corrects it,

    S_t = S_{t−1} + β (v_t − S_{t−1} φ̂(k_t)) φ̂(k_t)ᵀ,    o_t = S_t φ̂(q_t),    φ̂(x) = φ(x) / Σ φ(x).

φ is elu + 1. In a model β is a gate learned from each token; a bare attention has none, and β is one number, by default
what an untrained gate gives.

Chunks of C tokens go through at once: with U the corrections β (v_t − S_{t−1} φ̂(k_t)) of a chunk, K̂ its keys and S
what it starts from, (1 + β tril(K̂K̂ᵀ, −1)) U = β (V − K̂S). The backward computes chunks again from the states between.

Symbols: B batch, K key-value heads, G query heads that share one, N length. States are ``(B, K, D, Dv)``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import elu, pad
from torch.utils.checkpoint import checkpoint

from variants import _kernelized, _linear
from variants._contract import Attend, Complexity, NoParameters, Paper, Variant, Workload
from variants._kernelized import accumulated
from variants._linear import elu_plus_one
from variants._mask import Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_CHUNK = 64

Rule = Literal["sum", "delta"]


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a key writes, and with ``delta`` how much of the difference, above 0 and at most 1."""

    rule: Rule = "delta"
    beta: float = 0.5

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {self.rule!r}")
        if not 0 < self.beta <= 1:
            raise ValueError(f"beta must be above 0 and at most 1, got {self.beta}")


def build(workload: Workload, parameters: Parameters) -> Attend:
    if parameters.rule == "sum":
        return _linear.build(workload, NoParameters())
    hidden = _kernelized.hidden_keys(workload)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        queries, keys, values = shares(accumulated(query)), accumulated(key), accumulated(value)
        if hidden is None:
            keys = shares(keys)
        else:  # a key of zeros writes nothing
            keys, values = shares(keys.masked_fill(hidden, 0)).masked_fill(hidden, 0), values.masked_fill(hidden, 0)
        return _read(queries, keys, values, workload, parameters.beta).to(query.dtype)

    return attend


def shares(x: Tensor) -> Tensor:
    """φ̂(x): elu + 1, divided by its sum over the channels."""
    features = elu_plus_one(x)
    return features / features.sum(dim=-1, keepdim=True)


def _read(query: Tensor, key: Tensor, value: Tensor, workload: Workload, beta: float) -> Tensor:
    """``(B, H, Nq, Dv)``. The last query sees all keys: some are written before the first, or some queries see none."""
    before = workload.key_length - workload.query_length
    blind = max(-before, 0)
    queries = query[:, :, blind:].unflatten(1, (workload.kv_heads, workload.group))
    read: Tensor = _Delta.apply(queries, key, value, max(before, 0), beta)  # type: ignore[no-untyped-call]  # torch's
    return pad(read.flatten(1, 2), (0, 0, blind, 0))


# --- the delta rule -------------------------------------------------------------------------------------------------


class _Delta(torch.autograd.Function):
    """Query ``(B, K, G, N, D)`` of the last N positions, key and value ``(B, K, Nk, …)`` → ``(B, K, G, N, Dv)``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        before, beta = rest
        chunks = _chunks(before, key.shape[2])
        state = key.new_zeros(*key.shape[:2], key.shape[3], value.shape[3])
        read = query.new_empty(*query.shape[:4], value.shape[3])
        states: list[Tensor] = []
        for keys, queries in chunks:
            states += [state] if any(ctx.needs_input_grad) else []
            part, state = _chunk(query[..., queries, :], key[:, :, keys], value[:, :, keys], state, beta=beta)
            read[..., queries, :] = part
        ctx.save_for_backward(query, key, value, *states)
        ctx.chunks, ctx.beta = chunks, beta
        return read

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *states = ctx.saved_tensors
        d_query, d_key, d_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        d_state = torch.zeros_like(states[0])
        for (keys, queries), state in zip(reversed(ctx.chunks), reversed(states), strict=True):
            parts = query[..., queries, :], key[:, :, keys], value[:, :, keys], state
            inputs = [part.detach().requires_grad_() for part in parts]
            with torch.enable_grad():
                outputs = _chunk(*inputs, beta=ctx.beta)
            d_query[..., queries, :], d_key[:, :, keys], d_value[:, :, keys], d_state = torch.autograd.grad(
                outputs, inputs, (upstream[..., queries, :], d_state), materialize_grads=True
            )
        return d_query, d_key, d_value, None, None


def _chunks(before: int, length: int) -> list[tuple[slice, slice]]:
    """Keys of each chunk, and the queries at the same positions: none up to the position ``before``."""
    ends = [*range(0, before, _CHUNK), *range(before, length, _CHUNK), length]
    return [
        (slice(first, last), slice(max(first - before, 0), max(last - before, 0)))
        for first, last in itertools.pairwise(ends)
    ]


def _chunk(query: Tensor, key: Tensor, value: Tensor, state: Tensor, *, beta: float) -> tuple[Tensor, Tensor]:
    """What a chunk reads, ``(B, K, G, C or 0, Dv)``, and the state after it."""
    overlap = (beta * key @ key.mT).tril(-1)  # the diagonal counts as one
    missing = beta * (value - key @ state)
    written = torch.linalg.solve_triangular(overlap, missing, upper=False, unitriangular=True)
    pairs = (query @ key.mT[:, :, None]).tril()
    read = query @ state[:, :, None] + pairs @ written[:, :, None]
    return read, state + key.mT @ written


# --- the variant ----------------------------------------------------------------------------------------------------


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    mask = Mask.parse(workload.mask)
    reasons = _kernelized.obstacles(workload, name="fast weights")
    if not mask.is_causal:
        reasons.append(f"{mask}: fast weights are written token by token, and so causal; add 'causal' to the mask")
    if workload.scale is not None:
        reasons.append(f"fast weights have no scores to scale, and the scale asked for is {workload.scale:g}")
    return reasons


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    parameters: Parameters,
    rows: Tensor,
    routing: Any = None,
) -> Tensor:
    """The rule as written, token by token; the sum as linear attention's dense formula."""
    if parameters.rule == "sum":
        return _linear.reference(
            query, key, value, workload=workload, parameters=NoParameters(), rows=rows, routing=routing
        )
    offset = workload.key_length - workload.query_length
    features = elu(query) + 1
    queries = (features / features.sum(dim=-1, keepdim=True)).unflatten(1, (workload.kv_heads, workload.group))
    features = elu(key) + 1
    keys = features / features.sum(dim=-1, keepdim=True)
    hidden = _kernelized.hidden_keys(workload)
    if hidden is not None:
        keys = keys.masked_fill(hidden, 0)
    state = key.new_zeros(*key.shape[:2], workload.head_dim, workload.value_dim)
    wanted = sorted({int(row) for row in rows})
    read = {row: value.new_zeros(*queries.shape[:3], workload.value_dim) for row in wanted if row + offset < 0}
    last = max(wanted) + offset + 1
    for first in range(0, last, _CHUNK):  # a state per token would take O(N · D²) in the backward
        some = slice(first, min(first + _CHUNK, last))
        here = [row for row in wanted if some.start <= row + offset < some.stop]
        state, *parts = checkpoint(
            _token_by_token,
            state,
            keys[:, :, some],
            value[:, :, some],
            queries[..., here, :],
            times=[row + offset - first for row in here],
            beta=parameters.beta,
            use_reentrant=False,
        )
        read |= dict(zip(here, parts, strict=True))
    return torch.stack([read[int(row)] for row in rows], dim=3).flatten(1, 2)


def _token_by_token(
    state: Tensor, keys: Tensor, values: Tensor, queries: Tensor, *, times: list[int], beta: float
) -> list[Tensor]:
    """The state after all keys, then what each query reads right after the key of its time."""
    read = []
    for time in range(keys.shape[2]):
        k, v = keys[:, :, time, :, None], values[:, :, time, None, :]
        state = state + beta * k * (v - k.mT @ state)
        if time in times:
            read.append((queries[..., times.index(time), None, :] @ state[:, :, None])[..., 0, :])
    return [state, *read]


def flops(workload: Workload, parameters: Parameters) -> int:
    """With ``delta`` a chunk's pairs, a solve, a state read twice and written.

    A backward does it anew, and takes two for each product; for a solve another one, and a product of twice its size.
    """
    if parameters.rule == "sum":
        return _linear.flops(workload, NoParameters())
    head, value = workload.head_dim, workload.value_dim
    before = max(workload.key_length - workload.query_length, 0)
    per_head = per_key_head = solves = 0
    for keys, queries in _chunks(before, workload.key_length):
        k, q = keys.stop - keys.start, queries.stop - queries.start
        solves += k * k * value // 2
        per_key_head += k * k * head + 2 * k * head * value
        per_head += q * k * (head + value) + q * head * value
    products = workload.kv_heads * per_key_head + workload.heads * per_head
    forward, backward = products + workload.kv_heads * solves, 3 * products + 4 * workload.kv_heads * solves
    return 2 * workload.batch * workload.by_mode(forward, backward)


VARIANT = Variant(
    name="fast_weight",
    family="recurrent",
    exact=False,
    summary="A matrix that keys write values into and queries read from, by the delta rule or as a sum.",
    paper=Paper("Linear Transformers Are Secretly Fast Weight Programmers", 2021, "2102.11174"),
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"S_t = S_{t-1} + \beta\,(v_t - S_{t-1} \hat\varphi(k_t))\,\hat\varphi(k_t)^\top, \quad o_t = "
        r"S_t\,\hat\varphi(q_t), \quad \hat\varphi(x) = \varphi(x) / \textstyle\sum \varphi(x), \quad \varphi(x) = "
        r"\operatorname{elu}(x) + 1"
    ),
    exact_when="never; with `rule=sum` it is causal linear attention",
    traps=(
        "It is causal by nature, and refuses masks that are not.",
        "β is a gate learned from each token in a model; here it is one number.",
        "Each chunk waits for the one before: short and few sequences leave a GPU idle.",
    ),
)
