"""``torch.nn.functional.scaled_dot_product_attention`` held to one backend: the variants ``sdpa_*``.

Left to itself the function falls back to its math kernel without a word: for values wider or narrower than keys, on
CUDA for grouped heads in float32, for a mask of a wrong kind. Pinned to one backend it raises instead, and what it
would raise for is an obstacle.
Its own ``is_causal`` is aligned top-left, so it is used for square problems only.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from variants._contract import SOFTMAX, Attend, Claim, Complexity, Kernels, NoParameters, Paper, Variant, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import exact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_NAMES = {
    SDPBackend.MATH: "math",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn",
}
_HEADINGS = {
    SDPBackend.FLASH_ATTENTION: "flash attention",
    SDPBackend.EFFICIENT_ATTENTION: "memory efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn attention",
}
FLASH_CLAIMS = (
    Claim(
        statement="2 to 4 times as fast as standard attention",
        metric="speedup",
        value=2,
        over="naive_sdpa",
        min_length=1024,
        source="FlashAttention-2 (2023, arXiv 2307.08691), abstract, of the first FlashAttention on a GPU",
    ),
    Claim(
        statement="10 times less memory than standard attention at 2k",
        metric="memory_saving",
        value=10,
        over="naive_sdpa",
        min_length=2048,
        source="FlashAttention (2022, arXiv 2205.14135), readme of its repository",
    ),
)
_CUDA_ONLY = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)


def sdpa_variant(
    *,
    name: str,
    backend: SDPBackend | None,
    summary: str,
    paper: Paper | None,
    memory: float,
    claims: tuple[Claim, ...] = (),
    traps: tuple[str, ...] = (),
) -> Variant:
    """The variant that calls the function under ``backend`` alone; None leaves it the choice."""

    def build(workload: Workload, parameters: NoParameters) -> Attend:
        attn_mask, is_causal = Pattern.of(workload).sdpa()

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with nullcontext() if backend is None else sdpa_kernel(backend):
                return scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    attn_mask=attn_mask,
                    is_causal=is_causal,
                    scale=workload.scale,
                    enable_gqa=workload.group > 1,
                )

        return attend

    return Variant(
        name=name,
        family="exact",
        exact=True,
        summary=summary,
        paper=paper,
        build=build,
        obstacles=lambda workload, parameters: _obstacles(backend, workload),
        reference=exact,
        flops=lambda workload, parameters: _flops(backend, workload),
        complexity=Complexity(time=2, memory=memory),
        claims=claims,
        equation=SOFTMAX,
        exact_when="always",
        traps=traps,
        kernels={} if backend is None else {"cpu": _cpu_kernels(backend), "cuda": _cuda_kernels(backend)},
    )


def _obstacles(backend: SDPBackend | None, workload: Workload) -> Sequence[str]:
    mask = Mask.parse(workload.mask)
    reasons = [f"{term}: PyTorch's SDPA has no soft cap" for term in mask.unsupported(*mask.terms - {"softcap"})]
    if workload.device == "cpu":
        return reasons + _cpu_obstacles(backend, workload)
    return reasons + (_cuda_obstacles(backend, workload) if not reasons and torch.cuda.is_available() else [])


def _cpu_obstacles(backend: SDPBackend | None, workload: Workload) -> list[str]:
    if backend in _CUDA_ONLY:
        return [f"PyTorch has no {_NAMES[backend]} kernel for a CPU"]
    if backend is SDPBackend.FLASH_ATTENTION and workload.value_dim != workload.head_dim:
        return ["PyTorch's flash kernel needs values as wide as keys; elsewhere the math kernel would run"]
    return []


def _cuda_obstacles(backend: SDPBackend | None, workload: Workload) -> list[str]:
    """What PyTorch itself says when asked whether this backend takes these very shapes."""
    pattern = Pattern.of(workload)
    if not pattern.sees_everything and backend is not SDPBackend.MATH and _has_empty_rows(pattern):
        return ["some queries see no key, and what the kernel gives for them is not defined"]
    match backend:
        case SDPBackend.FLASH_ATTENTION:
            ask = torch.backends.cuda.can_use_flash_attention
        case SDPBackend.EFFICIENT_ATTENTION:
            ask = torch.backends.cuda.can_use_efficient_attention
        case SDPBackend.CUDNN_ATTENTION:
            ask = torch.backends.cuda.can_use_cudnn_attention
        case _:
            return []
    dtype = getattr(torch, workload.dtype)
    shapes = (
        (workload.heads, workload.query_length, workload.head_dim),
        (workload.kv_heads, workload.key_length, workload.head_dim),
        (workload.kv_heads, workload.key_length, workload.value_dim),
    )
    training = workload.mode != "fwd"
    query, key, value = (
        torch.empty((workload.batch, *shape), dtype=dtype, device="cuda", requires_grad=training) for shape in shapes
    )
    attn_mask, is_causal = _mask_to_ask_with(pattern), pattern.is_top_left_causal
    parameters = torch.backends.cuda.SDPAParams(
        query,
        key,
        value,
        attn_mask,
        0.0,
        is_causal,
        workload.group > 1,
    )
    if ask(parameters):
        return []
    with warnings.catch_warnings(record=True) as said:  # a call says why, and computes nothing
        warnings.simplefilter("always")
        with suppress(RuntimeError), sdpa_kernel(backend):
            scaled_dot_product_attention(
                query, key, value, attn_mask, is_causal=is_causal, enable_gqa=workload.group > 1
            )
    return [f"PyTorch's {_NAMES[backend]} kernel refuses it: {_why(backend, [str(one.message) for one in said])}"]


def _why(backend: SDPBackend, messages: Sequence[str]) -> str:
    """What PyTorch says under this kernel's heading: it goes through all of them, "X kernel not used because:" each."""
    under_heading = False
    for message in messages:
        if "not used because" in message:
            under_heading = _HEADINGS[backend] in message.lower()
        elif under_heading:
            return message.split(" (Triggered")[0].strip().rstrip(".")
    return "it does not say why"


def _mask_to_ask_with(pattern: Pattern) -> Tensor | None:
    """A mask of the right shape and dtype that takes no memory."""
    workload, mask = pattern.workload, pattern.mask
    if not mask.alibi and (pattern.sees_everything or pattern.is_top_left_causal):
        return None
    dtype = getattr(torch, workload.dtype) if mask.alibi else torch.bool
    batch = 1 if mask.padding is None else workload.batch
    shape = (batch, workload.heads if mask.alibi else 1, workload.query_length, workload.key_length)
    return torch.zeros((), dtype=dtype, device=pattern.device).expand(shape)


def _has_empty_rows(pattern: Pattern) -> bool:
    first, last = pattern.interval(torch.arange(pattern.workload.query_length))
    return bool((last <= first).any())


def _cpu_kernels(backend: SDPBackend) -> Kernels:
    if backend is SDPBackend.MATH:
        return Kernels((r"^aten::_scaled_dot_product_attention_math",), (r"flash_attention",))
    return Kernels((r"^aten::_scaled_dot_product_flash_attention_for_cpu$",), (r"attention_math",))


def _cuda_kernels(backend: SDPBackend) -> Kernels:
    other = {
        SDPBackend.MATH: r"^aten::_scaled_dot_product_attention_math",
        SDPBackend.FLASH_ATTENTION: r"^aten::_scaled_dot_product_flash_attention$",
        SDPBackend.EFFICIENT_ATTENTION: r"^aten::_scaled_dot_product_efficient_attention$",
        SDPBackend.CUDNN_ATTENTION: r"^aten::_scaled_dot_product_cudnn_attention$",
    }
    required = other.pop(backend)
    return Kernels((required,), tuple(other.values()))


def _flops(backend: SDPBackend | None, workload: Workload) -> int:
    """Two products forward; backward four, and a fifth where the scores are computed again.

    Under its causal flag the flash kernel stops each block of queries at the block's own last key; with a mask
    as a tensor it computes every pair.
    """
    pairs = workload.query_length * workload.key_length
    falls_to_math = backend is None and workload.device == "cpu" and workload.value_dim != workload.head_dim
    fused = backend is not SDPBackend.MATH and not falls_to_math
    if fused and Pattern.of(workload, "cpu").is_top_left_causal:
        block = _query_block(workload)
        pairs = sum(
            min(block, workload.query_length - start) * min(start + block, workload.key_length)
            for start in range(0, workload.query_length, block)
        )
    head, value = workload.head_dim, workload.value_dim
    forward = head + value
    backward = 2 * forward + (head if fused else 0)
    columns = workload.by_mode(forward, backward)
    return 2 * workload.batch * workload.heads * pairs * columns


def _query_block(workload: Workload) -> int:
    """Queries that the flash kernel takes at once: on a CPU by their number (ATen's FlashAttentionKernel.cpp)."""
    if workload.device != "cpu":
        return 128
    for least, block in ((768, 256), (192, 64)):
        if workload.query_length >= least:
            return block
    return 32


FLASH = Paper("FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023, "2307.08691")
EFFICIENT = Paper("Self-attention Does Not Need O(n²) Memory", 2021, "2112.05682")
PLAIN = Paper("Attention Is All You Need", 2017, "1706.03762")
