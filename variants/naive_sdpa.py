"""Scaled dot-product attention as written: softmax(QKᵀ/√d) V, with the N×N scores in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from variants._contract import SOFTMAX, Attend, Complexity, NoParameters, Paper, Variant, Workload
from variants._pattern import Pattern
from variants._reference import exact, expand_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def build(workload: Workload, parameters: NoParameters) -> Attend:
    pattern = Pattern.of(workload)
    hidden = empty = None
    if not pattern.sees_everything:
        hidden = ~pattern.dense()[0]
        empty = hidden.all(dim=-1, keepdim=True)
        empty = empty if bool(empty.any()) else None
    bias = pattern.bias(torch.arange(workload.query_length))
    softcap = pattern.mask.softcap

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = expand_heads(key, workload), expand_heads(value, workload)
        scores = (query * workload.softmax_scale) @ key.mT
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        if hidden is not None:
            scores.masked_fill_(hidden, float("-inf"))
        if empty is not None:  # a row of −inf would be NaN, and its gradient too
            scores.masked_fill_(empty, 0)
        weights = scores.softmax(dim=-1)
        del scores
        if empty is not None:
            weights = weights.masked_fill(empty, 0)
        return weights @ value

    return attend


def obstacles(workload: Workload, parameters: NoParameters) -> Sequence[str]:
    return ()


def flops(workload: Workload, parameters: NoParameters) -> int:
    """Two products over all pairs, hidden ones too; two more for each in the backward."""
    pairs = workload.batch * workload.heads * workload.query_length * workload.key_length
    forward = 2 * pairs * (workload.head_dim + workload.value_dim)
    return workload.by_mode(forward, 2 * forward)


VARIANT = Variant(
    name="naive_sdpa",
    family="exact",
    exact=True,
    summary="The formula as written, with all scores in memory: the baseline.",
    paper=Paper("Attention Is All You Need", 2017, "1706.03762"),
    build=build,
    obstacles=obstacles,
    reference=exact,
    flops=flops,
    complexity=Complexity(time=2, memory=2),
    equation=SOFTMAX,
    exact_when="always",
    traps=(
        "Scores and weights are in memory together: twice B·H·N² numbers at the peak of a forward.",
        "It is the baseline of speed-ups because it is the formula, not because anybody should run it.",
    ),
)
