"""Hard attention: each query takes the value of one key, the one with the highest score in sight.

The texts sample that key from soft weights (arXiv 1502.03044); here it is the most probable one. The choice has no
gradient: query and key get none, and the value's is handed to the chosen keys.

Symbols: B batch, H heads, Hkv key heads, G query heads that share one, Nq and Nk lengths, C queries of a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import embedding

from variants._contract import Attend, Complexity, NoParameters, Paper, Variant, Workload
from variants._drawn import accumulated
from variants._pattern import Pattern
from variants._reference import expand_heads
from variants._scores import Scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

NO_KEY = -1


def chosen(query: Tensor, key: Tensor, scores: Scores) -> Tensor:
    """The key that each query takes, ``(B, H, Nq)`` int64; ``NO_KEY`` where it sees none."""
    choices = torch.empty(query.shape[:3], dtype=torch.int64, device=query.device)
    with torch.no_grad():
        for rows in scores.chunks:
            highest, choice = scores.of(query, key, rows).max(dim=-1)
            choices[:, :, rows] = choice.masked_fill_(highest.isneginf(), NO_KEY)
    return choices


def build(workload: Workload, parameters: NoParameters) -> Attend:
    scores = Scores.of_workload(workload)
    heads = torch.arange(workload.batch * workload.kv_heads, device=workload.device).view(workload.batch, -1, 1)
    starts = (heads * workload.key_length).repeat_interleave(workload.group, dim=1)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        choices = chosen(query, key, scores)
        # Looked up as an embedding is, since the backward of that adds up in the same order every time.
        rows = accumulated(value).reshape(-1, value.shape[3])
        taken: Tensor = embedding(starts + choices.clamp(min=0), rows).to(value.dtype)
        return taken.masked_fill(choices[..., None] == NO_KEY, 0) if scores.some_see_nothing else taken

    return attend


def obstacles(workload: Workload, parameters: NoParameters) -> Sequence[str]:
    return ()


def route(query: Tensor, key: Tensor, *, workload: Workload, parameters: NoParameters) -> Tensor:
    """The key that each query takes, ``(B, H, Nq)`` int64, or -1."""
    return chosen(query, key, Scores.of_workload(workload))


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
    """Weight one on the chosen key, given the choices; hidden ones have none."""
    allowed, _ = Pattern.of(workload, value.device).rows(rows)
    keys = torch.arange(workload.key_length, device=value.device)
    weights: Tensor = (routing[:, :, rows.to(value.device), None] == keys) & allowed
    return weights.to(value.dtype) @ expand_heads(value, workload)


def flops(workload: Workload, parameters: NoParameters) -> int:
    """Scores forward. The backward has no product: an addition for every number of the output."""
    rows = workload.batch * workload.heads * workload.query_length
    forward, backward = 2 * rows * workload.key_length * workload.head_dim, rows * workload.value_dim
    return workload.by_mode(forward, backward)


VARIANT = Variant(
    name="hard",
    family="sparse",
    exact=False,
    summary="One key per query, the best: what soft weights are compared with. Query and key get no gradient.",
    paper=Paper("Show, Attend and Tell: Neural Image Caption Generation with Visual Attention", 2015, "1502.03044"),
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=2, memory=1),
    equation=r"o_i = v_{j^*}, \quad j^* = \arg\max_j\; s\,q_i \cdot k_j",
    exact_when="never; it is the limit of softmax attention as the scale grows",
    traps=(
        "Query and key get no gradient: nothing can be learned through the choice.",
        "The paper samples the key from soft weights; this takes the most probable one.",
        "Rounding decides between keys of nearly equal score, so that outputs are held to the choice that was made.",
    ),
    route=route,
)
