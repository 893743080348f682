"""Cross-covariance attention: channels attend to channels, by how alike they are over all positions (XCiT).

With every channel of query and key a unit vector over the positions, the weights are softmax(Q̂ᵀK̂/τ), D×D, and each
output channel is a mixture of the value's channels at the same position. τ is 1 where training starts; a ``scale`` of
the workload is 1/τ. Position i of query, key and value belong together: one length, and values as wide as keys. Padded
positions are zero in all three, so that nothing there is read, and their outputs are zero.

Symbols: B batch, H heads, N length, D channels of a head, R rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize

from variants._contract import Attend, Complexity, NoParameters, Paper, Variant, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def padded(workload: Workload, device: torch.device | str) -> Tensor | None:
    """Which positions are padding, ``(B, 1, N, 1)`` bool; None without padding."""
    kept = Pattern.of(workload, device).kept
    if kept is None:
        return None
    return (torch.arange(workload.key_length, device=device) >= kept[:, None])[:, None, :, None]


def inverse_temperature(workload: Workload) -> float:
    return 1.0 if workload.scale is None else workload.scale


def build(workload: Workload, parameters: NoParameters) -> Attend:
    hidden = padded(workload, workload.device)
    factor = inverse_temperature(workload)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if hidden is not None:
            query, key, value = (tensor.masked_fill(hidden, 0) for tensor in (query, key, value))
        query, key = normalize(query, dim=2), expand_heads(normalize(key, dim=2), workload)
        weights = (query.mT @ key * factor).softmax(dim=-1)
        return expand_heads(value, workload) @ weights.mT

    return attend


def obstacles(workload: Workload, parameters: NoParameters) -> Sequence[str]:
    reasons = [
        f"{term}: {_why_not(term.partition(':')[0])}" for term in Mask.parse(workload.mask).unsupported("padding")
    ]
    if not workload.is_square:
        reasons.append(
            "channels of query and key are compared position by position, so that their lengths must be equal, "
            f"got {workload.query_length} and {workload.key_length}"
        )
    if workload.value_dim != workload.head_dim:
        reasons.append(
            "weights between channels of query and key mix channels of the value, which needs as many of them, "
            f"got {workload.value_dim} and {workload.head_dim}"
        )
    return reasons


def _why_not(term: str) -> str:
    match term:
        case "causal" | "window" | "prefix":
            return "channel attention is not causal: each weight sums over all positions, later ones too"
        case "alibi" | "softcap":
            return "scores here are between channels, where a change meant for pairs of positions has no place"
        case _:
            return "channel attention has no weights between positions from which one could be hidden"


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
    """V softmax(Q̂ᵀK̂/τ)ᵀ of some rows."""
    hidden = padded(workload, query.device)
    if hidden is not None:
        query, key, value = (tensor.masked_fill(hidden, 0) for tensor in (query, key, value))
    query, key = (tensor / tensor.norm(dim=2, keepdim=True).clamp(min=1e-12) for tensor in (query, key))
    weights = torch.softmax(query.mT @ expand_heads(key, workload) * inverse_temperature(workload), dim=-1)
    return expand_heads(value, workload)[:, :, rows.to(value.device)] @ weights.mT


def flops(workload: Workload, parameters: NoParameters) -> int:
    """Two products of N·D² forward, two for each in the backward."""
    forward = 4 * workload.batch * workload.heads * workload.query_length * workload.head_dim**2
    return workload.by_mode(forward, 2 * forward)


VARIANT = Variant(
    name="channel",
    family="scoring",
    exact=False,
    summary="Attention among the D channels of a head instead of N positions: linear in N, and mixes no positions.",
    paper=Paper("XCiT: Cross-Covariance Image Transformers", 2021, "2106.09681"),
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"O^\top = \operatorname{softmax}(\hat Q^\top \hat K / \tau)\,V^\top, \quad \hat Q, \hat K \text{ with "
        r"columns of length 1}"
    ),
    exact_when="never: it mixes channels, not positions",
    traps=(
        "No position sees another one but through D×D products: XCiT mixes neighbours by a convolution beside it.",
        "A unit of length is taken over all positions, so that it cannot be causal.",
        "τ is learned in a model; here it is 1, or one over the scale of the workload.",
    ),
)
