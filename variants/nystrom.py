"""Nyströmformer: every query sees the landmarks, the landmarks see every key, and a small matrix joins them.

Both outer factors are attentions of their own, so that the fused kernel takes them and no N×m weights are kept. In
float32 at least: the pseudo-inverse magnifies what was rounded before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from variants import _nystrom
from variants._contract import Attend, Complexity, Variant, Workload
from variants._nystrom import PAPER, Extent, Parameters, pseudo_inverse, reference
from variants._reference import expand_heads
from variants._segments import pooled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def build(workload: Workload, parameters: Parameters) -> Attend:
    extents = _nystrom.extents(workload)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        precise = torch.promote_types(query.dtype, torch.float32)
        inputs = query.to(precise), key.to(precise), value.to(precise)
        if extents is None:
            output = attended(*inputs, _nystrom.whole(workload))
        else:
            each = zip(*(tensor.split(1) for tensor in inputs), extents, strict=True)
            output = torch.cat([attended(q, k, v, extent) for q, k, v, extent in each])
        return output.to(query.dtype)

    def attended(query: Tensor, key: Tensor, value: Tensor, extent: Extent) -> Tensor:
        """Items of one extent: ``(b, H, Nq, D)``, ``(b, Hkv, Nk, D)``, ``(b, Hkv, Nk, Dv)`` to ``(b, H, Nq, Dv)``."""
        scale = workload.softmax_scale
        key, value = key[:, :, : extent.keys], value[:, :, : extent.keys]
        q_means = pooled(query[:, :, : extent.queries], parameters.landmarks)
        k_means = expand_heads(pooled(key, parameters.landmarks), workload)
        inverse = pseudo_inverse((q_means @ k_means.mT * scale).softmax(dim=-1), parameters.iterations)
        # landmarks of heads that share a key head are queries of one head
        by_key_head = q_means.reshape(len(q_means), workload.kv_heads, -1, workload.head_dim)
        seen = scaled_dot_product_attention(by_key_head, key, value, scale=scale)
        seen = seen.reshape(*q_means.shape[:3], workload.value_dim)
        return scaled_dot_product_attention(query, k_means, inverse @ seen, scale=scale)

    return attend


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    return _nystrom.obstacles(workload)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Two attentions with landmarks, five products each in the backward, and the iteration, two for each of its own."""
    extents = _nystrom.extents(workload) or [_nystrom.whole(workload)] * workload.batch
    head, value = workload.head_dim, workload.value_dim
    of_pair = workload.by_mode(head + value, 3 * head + 2 * value)
    plain = workload.by_mode(1, 2)
    total = 0
    for extent in extents:
        q, k = min(parameters.landmarks, extent.queries), min(parameters.landmarks, extent.keys)
        pairs = workload.query_length * k + q * extent.keys
        inverse = parameters.iterations * (2 * q * q * k + 2 * q**3)
        total += pairs * of_pair + plain * (q * k * (head + value) + inverse)
    return 2 * workload.heads * total


VARIANT = Variant(
    name="nystrom",
    family="low_rank",
    exact=False,
    summary="Nyströmformer's landmarks: a softmax matrix from a few of its rows and columns.",
    paper=PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"O = \operatorname{softmax}(s\,Q \tilde K^\top)\; Z\; \operatorname{softmax}(s\,\tilde Q K^\top)\,V, \quad Z "
        r"\approx \operatorname{softmax}(s\,\tilde Q \tilde K^\top)^{+}"
    ),
    exact_when="there are as many landmarks as positions, and enough iterations",
    traps=(
        "Landmarks are means over positions, later ones too: it cannot be causal.",
        (
            "Six iterations do not reach the pseudo-inverse of a badly conditioned matrix: sharp attention over many "
            "landmarks may get worse, not better."
        ),
        "It computes in float32 at least, since the pseudo-inverse magnifies what was rounded before it.",
    ),
)
