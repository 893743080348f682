"""Additive attention: scores vᵀ tanh(Wq + Uk), a small network over every pair.

W and v belong to query heads, U to key heads, so that grouped heads share projected keys; all are drawn, seeded, as
they would be to start with: W and U with variance 2/(D + A), v with 1/A. A pair costs A tanh besides its product,
which makes this the dearest of scores. These A numbers are held for few queries at a time, and computed again in the
backward.

Symbols: B batch, H heads, Hkv key heads, G query heads that share one, Nq and Nk lengths, D head dim, A width of the
network, R queries of a piece.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from variants._contract import Attend, Complexity, Paper, Variant, Workload
from variants._drawn import accumulated, normal, trains
from variants._linformer import trained
from variants._pattern import Pattern
from variants._reference import expand_heads, masked_softmax, masked_weights
from variants._unscaled import scale_obstacles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_CPU_PIECE = 1 << 20  # numbers held at once: tanh of what a core's cache holds
_PIECE = 1 << 26  # elsewhere, where launches are dear


@dataclass(frozen=True, slots=True)
class Parameters:
    """``width`` is A. ``learned``: whether training computes the gradients of W, U and v as well."""

    width: int = 64
    learned: bool = False


class Network(NamedTuple):
    """W ``(H, D, A)``, U ``(Hkv, D, A)`` and v ``(H, A)``."""

    of_query: Tensor
    of_key: Tensor
    of_both: Tensor


def network(workload: Workload, parameters: Parameters) -> Network:
    size, width, learns = workload.head_dim, parameters.width, trains(workload, parameters)
    deviation = (2 / (size + width)) ** 0.5
    return Network(
        normal("bahdanau:W", (workload.heads, size, width), deviation, workload=workload, learns=learns),
        normal("bahdanau:U", (workload.kv_heads, size, width), deviation, workload=workload, learns=learns),
        normal("bahdanau:v", (workload.heads, width), width**-0.5, workload=workload, learns=learns),
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """The mask, and how many queries of one head to take at once."""

    pattern: Pattern
    step: int

    @staticmethod
    def of(workload: Workload, parameters: Parameters) -> Plan:
        held = _CPU_PIECE if workload.device == "cpu" else _PIECE
        return Plan(Pattern.of(workload), max(1, held // (workload.key_length * parameters.width)))

    def pieces(self) -> Iterator[Piece]:
        """Every query of every head of every item, once; the mask is looked up once for all heads."""
        workload = self.pattern.workload
        for rows in torch.arange(workload.query_length, device=self.pattern.device).split(self.step):
            allowed, bias = self.pattern.rows(rows)
            allowed = allowed.expand(workload.batch, -1, -1, -1)
            queries = slice(int(rows[0]), int(rows[-1]) + 1)
            for item, head in itertools.product(range(workload.batch), range(workload.heads)):
                yield Piece(
                    (item, head, queries),
                    (item, head // workload.group),
                    head,
                    allowed[item, 0],
                    None if bias is None else bias[0, head],
                    self.pattern.mask.softcap,
                )


class Piece(NamedTuple):
    """Where some queries and their keys stand in ``(B, H, Nq, …)`` and ``(B, Hkv, Nk, …)``, and what they may see."""

    queries: tuple[int, int, slice]
    keys: tuple[int, int]
    head: int
    allowed: Tensor
    bias: Tensor | None
    softcap: float | None

    def hidden_units(self, query: Tensor, key: Tensor) -> Tensor:
        """σ(q + k) of every pair, ``(R, Nk, A)``."""
        return (query[self.queries][:, None] + key[self.keys]).sigmoid_()

    def scores(self, units: Tensor, both: Tensor) -> Tensor:
        """vᵀ(2σ − 1), ``(R, Nk)``."""
        return units @ (2 * both[self.head]) - both[self.head].sum()

    def weights(self, scores: Tensor) -> Tensor:
        """Softmax of scores ``(R, Nk)`` under the mask."""
        if self.softcap is not None:
            scores = self.softcap * (scores / self.softcap).tanh()
        if self.bias is not None:
            scores = scores + self.bias.to(scores.dtype)
        return masked_softmax(scores, self.allowed)


class AdditiveAttention(torch.autograd.Function):
    """Query 2Wq ``(B, H, Nq, A)`` and key 2Uk ``(B, Hkv, Nk, A)``, v ``(H, A)``, value → ``(B, H, Nq, Dv)``.

    tanh(x) is 2σ(2x) − 1, and σ takes a sixth of its time on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, both: Tensor, *rest: Any) -> Tensor:
        value, plan = rest
        output: Tensor = value.new_empty(*query.shape[:3], value.shape[3])
        for piece in plan.pieces():
            scores = piece.scores(piece.hidden_units(query, key), both)
            output[piece.queries] = piece.weights(scores) @ value[piece.keys]
        ctx.save_for_backward(query, key, both, value)
        ctx.plan = plan
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, both, value = ctx.saved_tensors
        d_query = torch.empty_like(query)
        d_key, d_both, d_value = (torch.zeros_like(tensor) for tensor in (key, both, value))
        for piece in ctx.plan.pieces():
            units, above = piece.hidden_units(query, key), upstream[piece.queries]
            scores = piece.scores(units, both).requires_grad_()
            with torch.enable_grad():
                weights = piece.weights(scores)
            (d_scores,) = torch.autograd.grad(weights, scores, above @ value[piece.keys].mT)
            d_value[piece.keys] += weights.detach().mT @ above
            if ctx.needs_input_grad[2]:
                d_both[piece.head] += 2 * (d_scores.flatten() @ units.flatten(0, 1)) - d_scores.sum()
            d_sums = torch.addcmul(units, units, units, value=-1).mul_(d_scores[..., None])  # σ′ = σ − σ²
            slope = 2 * both[piece.head]
            d_query[piece.queries] = d_sums.sum(dim=1) * slope
            d_key[piece.keys] += d_sums.sum(dim=0) * slope
        return d_query, d_key, d_both, d_value, None


def build(workload: Workload, parameters: Parameters) -> Attend:
    weights = network(workload, parameters)
    plan = Plan.of(workload, parameters)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        of_query, of_key, of_both = (accumulated(matrix) for matrix in weights)
        queries, keys = accumulated(query) @ (2 * of_query), accumulated(key) @ (2 * of_key)
        output: Tensor = AdditiveAttention.apply(queries, keys, of_both, accumulated(value), plan)  # type: ignore[no-untyped-call]  # torch's
        return output.to(value.dtype)

    return trained(attend, weights) if trains(workload, parameters) else attend


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    reasons = [] if parameters.width >= 1 else [f"width must be at least 1, got {parameters.width}"]
    return reasons + scale_obstacles(workload, "additive scores are sized by v, and have no product to scale")


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
    """softmax(mask(vᵀ tanh(Wq + Uk))) V, few queries at a time: every pair has A numbers."""
    rows = rows.to(query.device)
    of_query, of_key, of_both = (matrix.detach().to(query) for matrix in network(workload, parameters))
    queries, keys = query[:, :, rows] @ of_query, expand_heads(key @ of_key, workload)

    def scores_of(some: Tensor) -> Tensor:
        units = torch.tanh(some[:, :, :, None] + keys[:, :, None])
        return (units * of_both[:, None, None]).sum(dim=-1)

    scores = torch.cat([scores_of(some) for some in queries.split(8, dim=2)], dim=2)
    weights = masked_weights(scores, pattern=Pattern.of(workload, query.device), rows=rows)
    return weights @ expand_heads(value, workload)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Projections, units times v, weights times values; the backward computes the units and scores again.

    The tanh of every unit is no product, and takes most of the time.
    """
    width, value = parameters.width, workload.value_dim
    rows = workload.heads * workload.query_length + workload.kv_heads * workload.key_length
    projections = rows * workload.head_dim * width
    pairs = workload.heads * workload.query_length * workload.key_length
    forward = projections + pairs * (width + value)
    learning = projections + pairs * width if parameters.learned else 0
    backward = projections + pairs * (width + 2 * value) + learning
    return 2 * workload.batch * workload.by_mode(forward, backward)


VARIANT = Variant(
    name="bahdanau",
    family="scoring",
    exact=False,
    summary="Additive scores, a small network over every pair: how attention began. A tanh per pair and hidden unit.",
    paper=Paper("Neural Machine Translation by Jointly Learning to Align and Translate", 2014, "1409.0473"),
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=2, memory=1),
    equation=r"O = \operatorname{softmax}(E)\,V, \quad E_{ij} = v^\top \tanh(W q_i + U k_j)",
    exact_when="never",
    traps=(
        "Each pair takes A values of tanh, with A the width of the network: the dearest score there is.",
        "W, U and v are drawn, not trained: what it attends to means nothing, its cost does.",
    ),
)
