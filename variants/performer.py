"""Performer: softmax attention estimated by positive orthogonal random features, in linear time.

Features span many orders of magnitude. What is divided out cancels between numerator and denominator: for a query
exp(−‖q′‖²/2) and its largest feature, for keys the largest of the head or, causal, the largest so far. No ε is added:
it would bend the weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from variants import _kernelized, _performer
from variants._contract import Attend, Complexity, Variant, Workload
from variants._kernelized import Features, accumulated, backward_flops, forward_flops, reference_rows
from variants._mask import Mask
from variants._performer import CLAIMS, PAPER, Parameters, directions, logarithms
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def build(workload: Workload, parameters: Parameters) -> Attend:
    drawn = directions(workload, parameters).to(workload.device)
    hidden = _kernelized.hidden_keys(workload)
    causal = Mask.parse(workload.mask).causal
    root = math.sqrt(workload.softmax_scale)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if hidden is not None:
            key = key.masked_fill(hidden, 0)
        features = of_queries(accumulated(query) * root), of_keys(accumulated(key) * root)
        return _kernelized.attention(*features, accumulated(value), workload=workload, hidden=hidden).to(query.dtype)

    def of_queries(x: Tensor) -> Features:
        projected = x @ drawn.to(x.dtype).mT
        return Features(projected.sub_(projected.detach().amax(dim=-1, keepdim=True)).exp_())

    def of_keys(x: Tensor) -> Features:
        projected = x @ drawn.to(x.dtype).mT
        half = x.square().sum(dim=-1) / 2
        if hidden is not None:
            projected = projected.masked_fill(hidden, float("-inf"))
        largest = projected.detach().amax(dim=-1) - half.detach()
        if causal:
            so_far = largest.cummax(dim=-1).values
            return Features(projected.sub_((half + so_far)[..., None]).exp_(), so_far)
        return Features(projected.sub_((half + largest.amax(dim=-1, keepdim=True))[..., None]).exp_())

    return attend


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    return _kernelized.obstacles(workload, name="Performer") + _performer.obstacles(workload)


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
    """φ(Q)φ(K)ᵀ with hidden pairs zero, divided by the sums of its rows, times V."""
    del routing
    weights = directions(workload, parameters).to(query)
    hidden = _kernelized.hidden_keys(workload)
    of_queries = logarithms(query[:, :, rows.to(query.device)], weights, workload.softmax_scale)
    of_keys = logarithms(expand_heads(key, workload), weights, workload.softmax_scale)
    if hidden is not None:
        of_keys = of_keys.masked_fill(hidden, float("-inf"))
    of_queries = of_queries - of_queries.detach().amax(dim=-1, keepdim=True)
    of_keys = of_keys - of_keys.detach().amax(dim=(-1, -2), keepdim=True)
    values = expand_heads(value, workload)
    return reference_rows(of_queries.exp(), of_keys.exp(), values, workload=workload, rows=rows)


def flops(workload: Workload, parameters: Parameters) -> int:
    """The features of queries and keys, then linear attention with as many columns."""
    features = parameters.count(workload)
    rows = workload.heads * workload.query_length + workload.kv_heads * workload.key_length
    projections = 2 * workload.batch * rows * workload.head_dim * features
    forward, backward = (count(workload, features) for count in (forward_flops, backward_flops))
    return workload.by_mode(forward + projections, backward + projections)


VARIANT = Variant(
    name="performer",
    family="kernel",
    exact=False,
    summary="The softmax estimated by ⌊D ln D⌋ positive orthogonal random features, in linear time.",
    paper=PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"o_i = \frac{\varphi(q_i) \sum_j \varphi(k_j)^\top v_j}{\varphi(q_i) \cdot \sum_j \varphi(k_j)}, \quad "
        r"\varphi_w(x) = \frac{1}{\sqrt M}\, e^{w \cdot \sqrt s\,x - s \lVert x \rVert^2 / 2}"
    ),
    exact_when=(
        "never; the mean over directions of numerator and denominator is, and the error falls with the root of the "
        "number of features"
    ),
    traps=(
        (
            "The variance of a feature grows exponentially with the norms of queries and keys: sharp attention is "
            "estimated badly."
        ),
        "Directions are drawn from the seed: another seed is another estimate.",
        "⌊D ln D⌋ features are 266 for D = 64: up to some 500 keys it computes more than exact attention.",
    ),
    claims=CLAIMS,
)
