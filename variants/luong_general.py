"""Luong's "general" score: qᵀWk, with a matrix W for each query head, and no scale.

W is a rotation, seeded, so that scores are as large as ``dot_product``'s. The product qᵀW is made once per
query; the rest is dot-product attention in tiles, recomputed in the backward.

Symbols: B batch, H heads, R rows, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from variants import _chunked
from variants._contract import Attend, Complexity, Paper, Variant, Workload
from variants._drawn import accumulated, rotation, trains
from variants._linformer import trained
from variants._reference import exact
from variants._unscaled import scale_obstacles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_TILES = _chunked.Parameters()


@dataclass(frozen=True, slots=True)
class Parameters:
    """``learned``: whether training computes the gradient of W as well."""

    learned: bool = False


def matrix(workload: Workload, parameters: Parameters) -> Tensor:
    """W of each head, ``(H, D, D)``."""
    learns = trains(workload, parameters)
    return rotation("luong_general", workload.heads, workload.head_dim, workload=workload, learns=learns)


def build(workload: Workload, parameters: Parameters) -> Attend:
    weights = matrix(workload, parameters)
    attend = _chunked.build(replace(workload, scale=1.0), _TILES)

    def attend_to_products(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(accumulated(query) @ accumulated(weights), key, value).to(query.dtype)

    return trained(attend_to_products, (weights,)) if trains(workload, parameters) else attend_to_products


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    return scale_obstacles(workload, "the matrix between query and key is the scale here")


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
    """softmax(mask(QWKᵀ)) V."""
    weights = matrix(workload, parameters).detach().to(query)
    return exact(query @ weights, key, value, workload=replace(workload, scale=1.0), rows=rows)


def flops(workload: Workload, parameters: Parameters) -> int:
    """``chunked_mha``'s, and QW; in the backward that once more, or twice where W is learned."""
    product = 2 * workload.batch * workload.heads * workload.query_length * workload.head_dim**2
    backward = 2 if parameters.learned else 1
    return _chunked.flops(workload, _TILES) + product * workload.by_mode(1, backward)


VARIANT = Variant(
    name="luong_general",
    family="scoring",
    exact=False,
    summary="Multiplicative scores qᵀWk with a matrix per head.",
    paper=Paper("Effective Approaches to Attention-based Neural Machine Translation", 2015, "1508.04025"),
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=2, memory=1),
    equation=r"O_h = \operatorname{softmax}(Q_h W_h K_h^\top)\,V_h",
    exact_when="never: W is drawn, not the identity",
    traps=(
        "W is a seeded rotation that nobody trained: what it attends to means nothing, its cost does.",
        "The gradient of W is part of training only with `luong_general.learned=true`.",
    ),
)
