"""Positional attention: each head has a learned score for every pair of positions, whatever stands there.

Also the "random" Synthesizer (arXiv 2005.00743). Scores are drawn N(0, 1), seeded, as scaled products of random inputs
are distributed. Weights that are not being trained are constants: softmax and mask are part of the set-up.

Symbols: B batch, H heads, Nq and Nk lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from variants import _positional
from variants._contract import Attend, Complexity, Variant, Workload
from variants._drawn import accumulated, normal, trains
from variants._linformer import trained
from variants._pattern import Pattern
from variants._positional import mixed, mixing_flops
from variants._reference import expand_heads, masked_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Parameters:
    """``learned``: whether training computes the softmax, and the gradient of the scores, in every call."""

    learned: bool = False


def table(workload: Workload, parameters: Parameters) -> Tensor:
    """The score of each pair of positions, ``(H, Nq, Nk)``."""
    shape = (workload.heads, workload.query_length, workload.key_length)
    return normal("positional", shape, 1.0, workload=workload, learns=trains(workload, parameters))


def build(workload: Workload, parameters: Parameters) -> Attend:
    scores = table(workload, parameters)
    pattern = Pattern.of(workload)
    rows = torch.arange(workload.query_length, device=workload.device)

    def weights() -> Tensor:
        return masked_weights(accumulated(scores[None]), pattern=pattern, rows=rows).to(scores.dtype)

    if trains(workload, parameters):
        return trained(lambda query, key, value: mixed(weights(), value, workload), (scores,))
    constant = weights()
    return lambda query, key, value: mixed(constant, value, workload)


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    return _positional.obstacles(workload)


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
    """softmax(mask(S)) V with the scores S of positions."""
    scores = table(workload, parameters).detach()[None, :, rows.to(workload.device)].to(value)
    weights = masked_weights(scores, pattern=Pattern.of(workload, value.device), rows=rows)
    return weights @ expand_heads(value, workload)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Weights times values; in the backward that for the values, and for the weights where they are learned."""
    backward = 2 if parameters.learned else 1
    return mixing_flops(workload) * workload.by_mode(1, backward)


VARIANT = Variant(
    name="positional",
    family="positional",
    exact=False,
    summary="Weights from positions alone, a table of N×N per head: one product left of two, and a fixed length.",
    paper=_positional.PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=2, memory=2),
    equation=r"O_h = \operatorname{softmax}(P_h)\,V_h, \quad P_h \in \mathbb{R}^{N \times N} \text{ learned}",
    exact_when="never: weights do not depend on the inputs",
    traps=(
        "The table is for one length, and takes N² numbers per head.",
        (
            "Softmax and mask are set-up where nothing is trained; `positional.learned=true` computes them, and the "
            "gradient of the table, in every call of training."
        ),
        "The table is drawn, not trained: what it attends to means nothing, its cost does.",
    ),
    uses=frozenset({"value"}),
)
