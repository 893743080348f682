"""xFormers' memory-efficient attention, held to one of its operators (CUDA only)."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from variants._blocks import covered_pairs
from variants._contract import SOFTMAX, Attend, Complexity, Kernels, Paper, Variant, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import exact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_ALIGNMENT = 8
_TILE = 64  # queries and keys that its kernels take at once


@dataclass(frozen=True, slots=True)
class Parameters:
    """Which of the package's operators: CUTLASS takes any dtype and bias, flash half precision and plain masks."""

    operator: Literal["cutlass", "flash"] = "cutlass"


def build(workload: Workload, parameters: Parameters) -> Attend:
    from xformers.ops import fmha

    bias, operator = _bias(workload), _operator(parameters)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = fmha.memory_efficient_attention(
            *(_packed(tensor, workload) for tensor in (query, key, value)),
            attn_bias=bias,
            scale=workload.scale,
            op=operator,
        )
        unpacked: Tensor = output.flatten(2, -2).transpose(1, 2)
        return unpacked

    return attend


def _packed(tensor: Tensor, workload: Workload) -> Tensor:
    """``(B, H, N, D)`` → the package's ``(B, N, H, D)``, or ``(B, N, G, H, D)`` for grouped heads, without a copy."""
    packed = tensor.transpose(1, 2)
    if workload.group == 1:
        return packed
    if packed.shape[2] == workload.kv_heads:
        return packed.unsqueeze(3).expand(-1, -1, -1, workload.group, -1)
    grouped: Tensor = packed.unflatten(2, (workload.kv_heads, workload.group))
    return grouped


def _operator(parameters: Parameters) -> Any:
    from xformers.ops import fmha

    return {
        "cutlass": (fmha.cutlass.FwOp, fmha.cutlass.BwOp),
        "flash": (fmha.flash.FwOp, fmha.flash.BwOp),
    }[parameters.operator]


def _bias(workload: Workload) -> Any:
    """The package's own mask where it has one, else an additive bias, per group where there are any."""
    pattern = Pattern.of(workload)
    if (own := _own_mask(pattern)) is not ...:
        return own
    allowed, added = pattern.dense()
    buffer = torch.zeros(_aligned(workload), dtype=getattr(torch, workload.dtype), device=workload.device)
    bias = buffer[..., : workload.key_length]
    if added is not None:
        bias += added.to(bias.dtype)
    bias.masked_fill_(~allowed, float("-inf"))
    return _by_group(bias, workload)


def _own_mask(pattern: Pattern) -> Any:
    """None for no mask, the package's causal one (aligned bottom-right), or ``...`` where it has none."""
    from xformers.ops.fmha import attn_bias

    if pattern.sees_everything and not pattern.mask.alibi:
        return None
    if pattern.mask.terms == {"causal"}:
        return attn_bias.LowerTriangularFromBottomRightMask()
    return ...


def _aligned(workload: Workload) -> tuple[int, ...]:
    """Shape of a bias whose rows start where the kernels want them."""
    width = -(-workload.key_length // _ALIGNMENT) * _ALIGNMENT
    return (workload.batch, workload.heads, workload.query_length, width)


def _by_group(bias: Tensor, workload: Workload) -> Tensor:
    return bias.unflatten(1, (workload.kv_heads, -1)) if workload.group > 1 else bias


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    reasons = [f"{term}: the package has no soft cap" for term in _softcap(workload)]
    if importlib.util.find_spec("xformers") is None:
        reasons.append("the package xformers is not installed: pip install 'attention-bench[packages]'")
    if workload.device == "cpu":
        reasons.append("the package's operators need CUDA")
    if workload.group > 1 and workload.mode != "fwd":
        reasons.append("the package's grouped heads have no backward")
    return reasons or _refusals(workload, parameters)


def _softcap(workload: Workload) -> list[str]:
    mask = Mask.parse(workload.mask)
    return mask.unsupported(*mask.terms - {"softcap"})


def _refusals(workload: Workload, parameters: Parameters) -> list[str]:
    """What the operator itself says against these inputs; the package's general list is not to be trusted."""
    if not torch.cuda.is_available():
        return ["there is no CUDA device here"]
    pattern = Pattern.of(workload)
    first, last = pattern.interval(torch.arange(workload.query_length))
    if bool((last <= first).any()):
        return ["some queries see no key, and what the kernel gives for them is not defined"]
    inputs = _inputs_to_ask_with(pattern)
    forward, backward = _operator(parameters)
    operators = (forward, backward) if workload.mode != "fwd" else (forward,)
    return [f"{operator.NAME}: {reason}" for operator in operators for reason in operator.not_supported_reasons(inputs)]


def _inputs_to_ask_with(pattern: Pattern) -> Any:
    """Inputs of the right shapes and dtypes that take next to no memory."""
    from xformers.ops import fmha

    workload = pattern.workload
    options = {"dtype": getattr(torch, workload.dtype), "device": pattern.device}
    shapes = (
        (workload.heads, workload.query_length, workload.head_dim),
        (workload.kv_heads, workload.key_length, workload.head_dim),
        (workload.kv_heads, workload.key_length, workload.value_dim),
    )
    tensors = (
        torch.empty(channels, requires_grad=workload.mode != "fwd", **options).expand(workload.batch, *rest, channels)
        for *rest, channels in shapes
    )
    bias = _own_mask(pattern)
    if bias is ...:
        empty = torch.empty(_ALIGNMENT, **options)[:1].expand(_aligned(workload))
        bias = _by_group(empty[..., : workload.key_length], workload)
    return fmha.Inputs(*(_packed(tensor, workload) for tensor in tensors), attn_bias=bias, scale=workload.scale)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Two products over every pair, or the seen half of a causal one; five in the backward (scores again)."""
    pattern = Pattern.of(workload, "cpu")
    pairs = workload.batch * workload.query_length * workload.key_length
    if pattern.mask.terms == {"causal"}:
        pairs = covered_pairs(pattern, _TILE, _TILE)
    head, value = workload.head_dim, workload.value_dim
    columns = workload.by_mode(head + value, 3 * head + 2 * value)
    return 2 * workload.heads * pairs * columns


VARIANT = Variant(
    name="xformers",
    family="exact",
    exact=True,
    summary="memory_efficient_attention of the package xformers, with its operator pinned.",
    paper=Paper("Self-attention Does Not Need O(n²) Memory", 2021, "2112.05682"),
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=exact,
    flops=flops,
    complexity=Complexity(time=2, memory=1),
    equation=SOFTMAX,
    exact_when="always",
    traps=(
        "The package imports on a CPU, where none of its operators runs.",
        "Grouped heads are forward only.",
        "Left to itself it chooses an operator; here one is pinned: `xformers.operator=flash` for the other.",
    ),
    kernels={"cuda": Kernels((r"fmha|flash|cutlass",), (r"^aten::bmm$", r"^aten::_softmax$"))},
    package="xformers",
)
