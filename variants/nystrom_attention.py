"""The attention of the package nystrom-attention, bare: no projections, no convolution of the values.

Its module takes one tensor, from which it cuts queries, keys and values: packing them is part of its cost, and so is a
key head for every query head. Its formula is not quite the paper's: the first inverse is scaled by a maximum over batch
and heads, so that items change each other; lengths that landmarks do not divide get zeros in front, which are keys like
others unless a mask is given; hidden landmarks take part in the pseudo-inverse.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from variants import _nystrom
from variants._contract import Attend, Complexity, Variant, Workload
from variants._kernelized import hidden_keys
from variants._nystrom import PAPER, Parameters
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_EPSILON = 1e-8  # the package's


def build(workload: Workload, parameters: Parameters) -> Attend:
    from nystrom_attention import NystromAttention

    with torch.device("meta"):  # it draws projections that are not used
        module = NystromAttention(
            dim=workload.head_dim,
            dim_head=workload.head_dim,
            heads=workload.heads,
            num_landmarks=parameters.landmarks,
            pinv_iterations=parameters.iterations,
            residual=False,
        )
    module.to_qkv = module.to_out = torch.nn.Identity()
    module.scale = workload.softmax_scale
    module.eval()
    hidden = hidden_keys(workload)
    kept = None if hidden is None else ~hidden[:, 0, :, 0]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = query, expand_heads(key, workload), expand_heads(value, workload)
        packed = torch.cat([tensor.transpose(1, 2).flatten(2) for tensor in heads], dim=2)
        output: Tensor = module(packed, mask=kept)
        by_head: Tensor = output.unflatten(2, (workload.heads, -1)).transpose(1, 2)
        return by_head

    return attend


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    reasons = _nystrom.obstacles(workload)
    if not workload.is_square:
        reasons.append(
            "the package takes queries and keys from one tensor, so that their lengths must be equal, "
            f"got {workload.query_length} and {workload.key_length}"
        )
    if workload.value_dim != workload.head_dim:
        reasons.append(f"the package has values as wide as keys, not {workload.value_dim} to {workload.head_dim}")
    if workload.dtype in ("bfloat16", "float16"):
        reasons.append(f"the package's pseudo-inverse starts from a float32 identity and fails in {workload.dtype}")
    if importlib.util.find_spec("nystrom_attention") is None:
        reasons.append("nystrom-attention is not installed; pip install 'attention-bench[packages]'")
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
    """The package's formula, zeros in front included."""
    del routing
    landmarks, front = parameters.landmarks, _front(workload, parameters)
    hidden = hidden_keys(workload)
    kept = torch.ones(1, 1, workload.key_length, 1, dtype=torch.bool, device=query.device)
    kept = pad(kept if hidden is None else ~hidden, (0, 0, front, 0), value=hidden is None)
    q, k, v = (
        pad(tensor, (0, 0, front, 0)) * kept
        for tensor in (query * workload.softmax_scale, expand_heads(key, workload), expand_heads(value, workload))
    )
    runs = kept.unflatten(2, (landmarks, -1)).sum(dim=3)
    q_means, k_means = (
        tensor.unflatten(2, (landmarks, -1)).sum(dim=3) / (runs + (_EPSILON if hidden is not None else 0))
        for tensor in (q, k)
    )
    q, some = q[:, :, rows.to(q.device) + front], kept[:, :, rows.to(q.device) + front]
    present = runs > 0
    from_landmarks = _softmax(q @ k_means.mT, some & present.mT)
    among_landmarks = _softmax(q_means @ k_means.mT, present & present.mT)
    to_landmarks = _softmax(q_means @ k.mT, present & kept.mT)
    return from_landmarks @ _inverse(among_landmarks, parameters.iterations) @ (to_landmarks @ v)


def _softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Uniform over everything where nothing is allowed."""
    return scores.masked_fill(~allowed, -torch.finfo(scores.dtype).max).softmax(dim=-1)


def _inverse(matrix: Tensor, iterations: int) -> Tensor:
    """As :func:`variants._nystrom.pseudo_inverse`, but from a scale that all matrices share."""
    inverse = matrix.mT / (matrix.sum(dim=-1).max() * matrix.sum(dim=-2).max())
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return inverse


def _front(workload: Workload, parameters: Parameters) -> int:
    """Zeros before the first position, up to a multiple of the landmarks."""
    return -workload.key_length % parameters.landmarks


def flops(workload: Workload, parameters: Parameters) -> int:
    """Scores of positions and landmarks, the iteration, and three products with what it gives; twice that backward."""
    m, head, value = parameters.landmarks, workload.head_dim, workload.value_dim
    length = workload.key_length + _front(workload, parameters)
    scores = (2 * length * m + m * m) * head
    outputs = length * m * m + 2 * length * m * value
    forward = 2 * workload.batch * workload.heads * (scores + outputs + 4 * parameters.iterations * m**3)
    return workload.by_mode(forward, 2 * forward)


VARIANT = Variant(
    name="nystrom_attention",
    family="low_rank",
    exact=False,
    summary="The package nystrom-attention, its attention alone; batch items and heads change each other's scale.",
    paper=PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"O = \operatorname{softmax}(s\,Q \tilde K^\top)\; Z\; \operatorname{softmax}(s\,\tilde Q K^\top)\,V, \quad "
        r"Z_0 = A^\top / (\max_{b,h} \lVert A \rVert_1 \max_{b,h} \lVert A \rVert_\infty)"
    ),
    exact_when="there are as many landmarks as positions, and enough iterations",
    traps=(
        "The iteration starts from a maximum over batch and heads: items of a batch change each other's results.",
        (
            "Zeros are put in front of lengths that landmarks do not divide, and are keys like others unless a mask "
            "is given."
        ),
        "It takes one packed tensor: packing is part of the time.",
        "It fails in half precision.",
    ),
    package="nystrom-attention",
)
