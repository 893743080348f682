"""Reformer's LSH attention, from the paper (Reformer: The Efficient Transformer, arXiv 2001.04451), in linear memory.

Queries are keys. Vectors that point the same way fall into the same bucket, positions are sorted by bucket and cut into
chunks, and a query sees its own chunk and the one before (the first looks back to the last). With P(i, r) the positions
that i sees in round r, P(i) their union over the rounds, and k̂ = q / ‖q‖,

    o_i = Σ_j softmax over j ∈ P(i) without i of (scale · q_i · k̂_j) · v_j,    or v_i where nothing else is in sight.

That is the paper's log-sum-exp over rounds: a pair met in n rounds counts 1/n in each, and so once. Here it counts in
the first of them alone, the same sum for half the comparing. As in the code that the authors released, P(i, r) is all
of both chunks; the paper's equation also hides the other buckets in them, at the same cost.

Padding is sorted behind everything: it moves no chunk, is seen by nobody and gets zeros.

Symbols: B batch, H heads, G heads worked on together, N length, L positions that are no padding, D head dim, R rounds,
M bucket size, C chunks of the G heads, W keys that a chunk sees: 2M, or M where there is no other chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import normalize

from variants._contract import Attend, Complexity, Paper, Variant, Workload
from variants._lsh import (
    HIDDEN,
    Group,
    Parameters,
    Plan,
    Round,
    accumulation,
    drawn_rotations,
    in_sight,
    piece_size,
    rounds,
    route,
    sorted_positions,
)
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import expand_heads, masked_softmax

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_LEAST_NORM = 1e-12  # as torch's normalize has it


# --- both passes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tables:
    """What the rows of a group hold: queries and scaled unit keys ``(G · L, D)``, values ``(G · L, Dv)``."""

    queries: Tensor
    keys: Tensor
    values: Tensor

    @staticmethod
    def of(x: Tensor, value: Tensor, scale: float) -> Tables:
        """From queries and values ``(G, L, …)``."""
        return Tables(x.flatten(0, 1), normalize(x, dim=-1).mul_(scale).flatten(0, 1), value.flatten(0, 1))

    def weights(self, one: Round, piece: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Softmax ``(c, M, W)`` of some chunks in one round, its log-sum-exp ``(c, M)``, and the queries and keys."""
        queries, keys = _taken(self.queries, one.queries[piece]), _taken(self.keys, one.keys[piece])
        scores = torch.bmm(queries, keys.mT)
        one.hide(scores, piece)
        weights = torch.softmax(scores, dim=-1)
        logsumexp = scores.amax(dim=-1) - weights.amax(dim=-1).log_()
        return weights, logsumexp, queries, keys


def merged(tables: Tables, order: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Output ``(G · L, Dv)`` and log-sum-exp ``(G · L,)`` over all rounds."""
    output = torch.zeros_like(tables.values)
    logsumexp = output.new_full((len(output),), 2 * HIDDEN)
    for one in rounds(order, plan, output.dtype):
        in_slots = output.new_empty(*one.queries.shape, output.shape[1])
        logsumexp_in_slots = output.new_empty(one.queries.shape)
        for piece in _pieces(one.keys, one.queries):
            weights, logsumexp_in_slots[piece], _, _ = tables.weights(one, piece)
            torch.bmm(weights, _taken(tables.values, one.keys[piece]), out=in_slots[piece])
        logsumexp_here = logsumexp_in_slots.flatten()[one.slots]
        share = torch.sigmoid(logsumexp_here - logsumexp)
        output.lerp_(in_slots.flatten(0, 1).index_select(0, one.slots), share[:, None])
        logsumexp = torch.logaddexp(logsumexp, logsumexp_here)
    alone = _alone(logsumexp)
    output[alone] = tables.values[alone]
    return output, logsumexp


def gradients(
    x: Tensor, value: Tensor, upstream: Tensor, output: Tensor, *, order: Tensor, logsumexp: Tensor, plan: Plan
) -> tuple[Tensor, Tensor]:
    """Gradients of a group's queries and values; all of ``(G, L, …)``, but ``logsumexp`` ``(G · L,)``."""
    heads, length, _ = x.shape
    tables = Tables.of(x, value, plan.workload.softmax_scale)
    d_queries, d_keys, d_values = (torch.zeros_like(table) for table in (tables.queries, tables.keys, tables.values))
    alone = _alone(logsumexp)
    d_values[alone] = upstream.flatten(0, 1)[alone]
    upstream = upstream.flatten(0, 1).index_fill(0, alone, 0)
    delta = (upstream * output.flatten(0, 1)).sum(dim=1)
    for one in rounds(order, plan, x.dtype):
        total = logsumexp[one.queries]
        total.view(heads, -1)[:, length:] = torch.inf  # slots of no position have no share
        for piece in _pieces(one.keys, one.queries):
            rows, seen = one.queries[piece], one.keys[piece]
            weights, logsumexp_here, queries, keys = tables.weights(one, piece)
            weights.mul_((logsumexp_here - total[piece]).exp_()[..., None])
            above = _taken(upstream, rows)
            _add(d_values, seen, torch.bmm(weights.mT, above))
            d_scores = torch.bmm(above, _taken(tables.values, seen).mT)
            d_scores.sub_(delta[rows][..., None]).mul_(weights)
            _add(d_queries, rows, torch.bmm(d_scores, keys))
            _add(d_keys, seen, torch.bmm(d_scores.mT, queries))
    return d_queries.view_as(x) + _through_normalisation(d_keys.view_as(x), x, plan), d_values.view_as(value)


def _through_normalisation(d_keys: Tensor, x: Tensor, plan: Plan) -> Tensor:
    """The gradient of ``x`` from that of ``scale · x / ‖x‖``."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_(min=_LEAST_NORM)
    unit = x / norm
    along = (unit * d_keys).sum(dim=-1, keepdim=True)
    return (d_keys - unit.mul_(along)).mul_(plan.workload.softmax_scale).div_(norm)


class LSHAttention(torch.autograd.Function):
    """Query ``(B, H, N, D)``, value ``(B, Hkv, N, Dv)``, rotations → ``(B, H, N, Dv)``.

    The backward computes the scores again. Both passes hold the tables of one group and the scores of one piece of it.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, value: Tensor, rotations: Tensor, plan: Plan) -> Tensor:
        output = query.new_zeros(*query.shape[:3], value.shape[3])
        saved = []
        for group in plan.groups(query.device):
            x, values = group.of(query), _values_of(group, value, plan)
            order = sorted_positions(x, rotations[group.heads], plan)
            result, logsumexp = merged(Tables.of(x, values, plan.workload.softmax_scale), order, plan)
            output[group.item, group.heads, : group.length] = result.view_as(values)
            saved += [order, logsumexp] if any(ctx.needs_input_grad) else []
        ctx.save_for_backward(query, value, output, *saved)
        ctx.plan = plan
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, value, output, *saved = ctx.saved_tensors
        plan: Plan = ctx.plan
        d_query = torch.zeros_like(query)
        d_value = torch.zeros_like(value, dtype=accumulation(value.dtype))
        for group, order, logsumexp in zip(plan.groups(query.device), saved[::2], saved[1::2], strict=True):
            dx, d_values = gradients(
                group.of(query),
                _values_of(group, value, plan),
                group.of(upstream),
                group.of(output),
                order=order,
                logsumexp=logsumexp,
                plan=plan,
            )
            d_query[group.item, group.heads, : group.length] = dx
            d_value[group.item, :, : group.length].index_add_(0, _value_heads(group, plan, value.device), d_values)
        return d_query, d_value.to(value.dtype), None, None


def _values_of(group: Group, value: Tensor, plan: Plan) -> Tensor:
    """The values ``(G, L, Dv)`` that the heads of a group use: consecutive heads share."""
    if plan.workload.group == 1:
        return group.of(value)
    shared = value[group.item, :, : group.length].index_select(0, _value_heads(group, plan, value.device))
    return shared.to(accumulation(value.dtype))


def _value_heads(group: Group, plan: Plan, device: torch.device) -> Tensor:
    return torch.arange(group.heads.start, group.heads.stop, device=device) // plan.workload.group


def _alone(logsumexp: Tensor) -> Tensor:
    """Rows that see nobody, and so themselves."""
    return (logsumexp < HIDDEN / 2).nonzero().flatten()


def _taken(table: Tensor, rows: Tensor) -> Tensor:
    """``(rows, D)`` at ``(c, W)``: ``(c, W, D)``."""
    return table.index_select(0, rows.flatten()).view(*rows.shape, -1)


def _add(table: Tensor, rows: Tensor, gradient: Tensor) -> None:
    table.index_add_(0, rows.flatten(), gradient.flatten(0, 1))


def _pieces(keys: Tensor, queries: Tensor) -> Iterator[slice]:
    """Chunks in runs of which the scores make one piece."""
    step = max(1, piece_size(keys.device) // (queries.shape[1] * keys.shape[1]))
    return (slice(first, first + step) for first in range(0, len(keys), step))


# --- the variant --------------------------------------------------------------------------------------------


def build(workload: Workload, parameters: Parameters) -> Attend:
    plan = Plan.of(workload, parameters)
    rotations = drawn_rotations(plan).to(workload.device)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        del key
        output: Tensor = LSHAttention.apply(query, value, rotations, plan)  # type: ignore[no-untyped-call]  # torch's
        return output

    return attend


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    reasons = [
        f"{name} must be at least 1, got {number}"
        for name, number in (("bucket_size", parameters.bucket_size), ("hashes", parameters.hashes))
        if number < 1
    ]
    if not workload.is_square:
        reasons.append(
            "queries and keys are one tensor here, so that their lengths must be equal, "
            f"got {workload.query_length} and {workload.key_length}"
        )
    terms = Mask.parse(workload.mask).unsupported("causal", "padding")
    return reasons + [f"{term}: buckets know no distance; full, causal and padding can be honoured" for term in terms]


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    parameters: Any,
    rows: Tensor,
    routing: Any = None,
) -> Tensor:
    """Softmax over the union of what the rounds bring into sight, as the module says, given the buckets."""
    del key
    rows = rows.to(query.device)
    own = rows[:, None] == torch.arange(workload.key_length, device=query.device)
    allowed, _ = Pattern.of(workload, query.device).rows(rows)
    others = in_sight(routing, rows, Plan.of(workload, parameters)) & allowed & ~own
    seen = torch.where(others.any(dim=-1, keepdim=True), others, own & allowed)
    scores = query[:, :, rows] @ _unit(query).mT * workload.softmax_scale
    return masked_softmax(scores, seen) @ expand_heads(value, workload)


def _unit(x: Tensor) -> Tensor:
    """Vectors over their norms, so written that only a change across them has a gradient: torch's cancels near 0."""
    norm: Tensor = torch.linalg.vector_norm(x.detach(), dim=-1, keepdim=True).clamp(min=_LEAST_NORM)
    along = x.detach() / norm
    return along + (x - along * (along * x).sum(dim=-1, keepdim=True)) / norm


def flops(workload: Workload, parameters: Parameters) -> int:
    """Rotations, and two products over the pairs of each round; five in the backward, which computes scores again."""
    plan = Plan.of(workload, parameters)
    head, value = workload.head_dim, workload.value_dim
    columns = workload.by_mode(head + value, 3 * head + 2 * value)
    total = 0
    for length in plan.lengths:
        total += plan.rounds(length) * plan.pairs(length) * columns
        if workload.mode != "bwd" and plan.hides(length):
            total += parameters.hashes * length * head * (plan.buckets // 2)
    return 2 * workload.heads * total


VARIANT = Variant(
    name="reformer_lsh",
    family="hashing",
    exact=False,
    summary=(
        "The Reformer's LSH attention on shared queries and keys, in linear memory. The paper claims N log N, exponent "
        "1; yet with buckets of one size the rotations alone grow as N²."
    ),
    paper=Paper("Reformer: The Efficient Transformer", 2020, "2001.04451"),
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"o_i = \frac{\sum_{j \in P_i \setminus i} e^{s\,q_i \cdot \hat k_j}\, v_j}{\sum_{j \in P_i \setminus i} "
        r"e^{s\,q_i \cdot \hat k_j}}, \quad \hat k_j = q_j / \lVert q_j \rVert, \quad P_i = \text{whom } i \text{ "
        r"meets in any round}"
    ),
    exact_when=(
        "never: queries are keys, of unit length, and a position sees itself only where it sees nobody else. With "
        "everything in sight it is full attention of that kind"
    ),
    traps=(
        "Query and key are one tensor: put into a model with two, it gives something else.",
        (
            "Causal, later positions never reach a value, yet they move the borders of buckets: routing leaks, and "
            "is reported."
        ),
        "The paper claims N log N; with buckets of one size the rotations grow as N².",
        "Buckets are random: another seed is another result.",
    ),
    uses=frozenset({"query", "value"}),
    route=route,
    causal_leak="routing",
)
