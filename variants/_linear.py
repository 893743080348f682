"""φ(Q)(φ(K)ᵀV), normalised, with φ(x) = elu(x) + 1: what ``linear_attention`` and summing ``fast_weight`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.functional import elu

from variants import _kernelized
from variants._contract import Attend, NoParameters, Workload
from variants._kernelized import Features, accumulated, backward_flops, forward_flops, reference_rows
from variants._linear_full import FullLinearAttention
from variants._mask import Mask
from variants._reference import expand_heads

if TYPE_CHECKING:
    from torch import Tensor


def build(workload: Workload, parameters: NoParameters) -> Attend:
    return _causal(workload) if Mask.parse(workload.mask).causal else _full(workload)


def _full(workload: Workload) -> Attend:
    hidden = _kernelized.hidden_keys(workload)
    ignored = None if hidden is None else hidden[:, None]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        grouped = query.unflatten(1, (workload.kv_heads, workload.group))
        output: Tensor = FullLinearAttention.apply(grouped, key[:, :, None], value[:, :, None], ignored)  # type: ignore[no-untyped-call]  # torch's
        return output.flatten(1, 2)

    return attend


def _causal(workload: Workload) -> Attend:
    hidden = _kernelized.hidden_keys(workload)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if hidden is not None:
            key = key.masked_fill(hidden, 0)
        queries, keys = (Features(elu_plus_one(accumulated(tensor))) for tensor in (query, key))
        return _kernelized.attention(queries, keys, accumulated(value), workload=workload, hidden=hidden).to(
            query.dtype
        )

    return attend


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, whose sum with one would round away what is far below zero: exp(x) there, x + 1 above."""
    return x.clamp(max=0).exp() + x.relu()


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
    """φ(Q)φ(K)ᵀ with hidden pairs zero, divided by the sums of its rows, times V."""
    del routing
    queries, keys = elu(query[:, :, rows.to(query.device)]) + 1, elu(expand_heads(key, workload)) + 1
    return reference_rows(queries, keys, expand_heads(value, workload), workload=workload, rows=rows)


def flops(workload: Workload, parameters: NoParameters) -> int:
    """A state written once per key and read once per query; causal, with its sums, and the pairs within chunks too."""
    if Mask.parse(workload.mask).causal:
        forward, backward = (count(workload, workload.head_dim) for count in (forward_flops, backward_flops))
        return workload.by_mode(forward, backward)
    positions = workload.kv_heads * workload.key_length + workload.heads * workload.query_length
    states = 2 * workload.batch * positions * workload.head_dim * workload.value_dim
    return workload.by_mode(states, 2 * states)
