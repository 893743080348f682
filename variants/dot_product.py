"""Dot-product attention without a scale: softmax(QKᵀ) V, as it was before transformers divided by √D.

With inputs of unit variance scores have variance D, so that the softmax is nearly a choice of one key.
Computed in tiles with an online softmax, and recomputed in the backward, like ``chunked_mha``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from variants import _chunked
from variants._contract import Attend, Complexity, NoParameters, Paper, Variant, Workload
from variants._reference import exact
from variants._unscaled import scale_obstacles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_TILES = _chunked.Parameters()


def build(workload: Workload, parameters: NoParameters) -> Attend:
    return _chunked.build(replace(workload, scale=1.0), _TILES)


def obstacles(workload: Workload, parameters: NoParameters) -> Sequence[str]:
    return scale_obstacles(workload, "dot-product attention has none, which is what sets it apart")


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    parameters: NoParameters,
    rows: Tensor,
    routing: Any = None,
) -> Tensor:
    """softmax(mask(QKᵀ)) V."""
    return exact(query, key, value, workload=replace(workload, scale=1.0), rows=rows)


def flops(workload: Workload, parameters: NoParameters) -> int:
    """As ``chunked_mha``: two products over the tiles in sight, five in the backward."""
    return _chunked.flops(workload, _TILES)


VARIANT = Variant(
    name="dot_product",
    family="scoring",
    exact=False,
    summary="Scores QKᵀ without the division by √D: sharper weights the larger D is.",
    paper=Paper("Effective Approaches to Attention-based Neural Machine Translation", 2015, "1508.04025"),
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=2, memory=1),
    equation=r"O = \operatorname{softmax}(Q K^\top)\,V",
    exact_when="the scale is 1: heads of one channel, or a workload that asks for it",
    traps=(
        (
            "With inputs of unit variance scores have variance D, so that the softmax nearly chooses one key and its "
            "gradient vanishes."
        ),
        "It has no scale, and refuses a workload with one of its own.",
    ),
)
