"""FlexAttention, compiled, for any pattern. What :mod:`variants.flex` and BigBird through FlexAttention share.

The compiler starts afresh for every build and must take the whole graph, since after some recompilations the unfused
path would run in silence. There is always a block mask, since without one hidden blocks are computed; it is made from
intervals and block tables, since ``create_block_mask`` takes O(N²) memory.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import torch

from variants._blocks import covered_pairs
from variants._contract import Kernels
from variants._pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from variants._contract import Attend, Workload

KERNELS = {
    "cpu": Kernels(
        required=(r"\bCompiledFxGraph\b",),
        forbidden=(r"^aten::(b?mm|matmul|baddbmm|einsum|_?softmax|_scaled_dot_product\w*)$",),
    ),
    "cuda": Kernels(
        required=(r"^triton_.*(tem|flex)",),
        forbidden=(r"^aten::(b?mm|matmul|baddbmm|einsum|_?softmax|_scaled_dot_product\w*)$",),
    ),
}

_BLOCK = 128
_SMALL_BLOCK = 64  # the smallest tile that all default configurations of the forward divide
_SMALLEST_CUDA_HEAD_DIM = 16


def compiled(pattern: Pattern) -> Attend:
    """FlexAttention under ``pattern``, compiled and called once, forward and (where the mode has one) backward.

    Calls take exactly the workload's shapes and dtype. In ``fwd`` they are never differentiated.
    """
    torch.compiler.reset()  # earlier builds must not use up the recompilations of this one
    call = torch.compile(_bound(pattern), fullgraph=True, dynamic=False)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return call(query, key, value)

    def attend_only(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with torch.no_grad():  # and detached: on a CPU it refuses inputs that ask for gradients, even here
            return call(query.detach(), key.detach(), value.detach())

    built = attend_only if pattern.workload.mode == "fwd" else attend
    _call_once(built, pattern.workload)
    return built


def obstacles(workload: Workload) -> list[str]:
    """Why compiled FlexAttention cannot take this workload here, whatever its mask."""
    found = []
    if workload.dtype == "float64":
        found.append("compiled FlexAttention has no float64 kernel")
    if workload.device == "cpu":
        if workload.mode != "fwd":
            found.append("FlexAttention has no backward on a CPU")
        found += _cpu_obstacles()
    else:
        if min(workload.head_dim, workload.value_dim) < _SMALLEST_CUDA_HEAD_DIM:
            found.append(f"FlexAttention on CUDA takes head dimensions from {_SMALLEST_CUDA_HEAD_DIM}")
        if not torch.cuda.is_available():
            found.append("there is no CUDA device here")
        if importlib.util.find_spec("triton") is None:
            found.append("FlexAttention on CUDA compiles with triton, which is not installed")
    return found


def flops(pattern: Pattern) -> int:
    """Two products over the blocks that are not skipped, cut at the lengths; five in the backward (scores again)."""
    workload = pattern.workload
    size = block_size(pattern)
    head, value = workload.head_dim, workload.value_dim
    columns = workload.by_mode(head + value, 3 * head + 2 * value)
    return 2 * workload.heads * covered_pairs(pattern, size, size) * columns


def block_size(pattern: Pattern) -> int:
    """Edge of the blocks that are skipped or computed as a whole.

    BigBird's own, but where CUDA kernels cannot tile them: forward tiles divide 64, backward ones may need 128.
    """
    if pattern.mask.bigbird is None:
        return _BLOCK
    own = pattern.mask.bigbird.block
    divides = _SMALL_BLOCK if pattern.workload.mode == "fwd" else _BLOCK
    return own if pattern.workload.device == "cpu" or own % divides == 0 else _BLOCK


def _bound(pattern: Pattern) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    workload = pattern.workload
    size = block_size(pattern)
    block_mask, score_mod = pattern.block_mask(size), pattern.score_mod()
    options = _cuda_options(workload, size) if workload.device == "cuda" else None

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = flex_attention(
            query,
            key,
            value,
            score_mod=score_mod,
            block_mask=block_mask,
            scale=workload.softmax_scale,
            enable_gqa=workload.group > 1,
            kernel_options=options,
        )
        assert isinstance(output, torch.Tensor)  # noqa: S101  # a tuple only where asked for
        return output

    return call


def _cuda_options(workload: Workload, size: int) -> Any:
    """Tiles that divide the blocks, and no decoding kernel where its one tile of queries would not fit in a block."""
    options: dict[str, Any] = {"FORCE_USE_FLEX_ATTENTION": workload.query_length * workload.group > _SMALL_BLOCK}
    if size % _BLOCK:
        options |= {"fwd_BLOCK_M": _SMALL_BLOCK, "fwd_BLOCK_N": _SMALL_BLOCK, "FORCE_USE_FLEX_ATTENTION": True}
    return options


def _call_once(attend: Attend, workload: Workload) -> None:
    """Compile: on random inputs, and backward too where the mode has one."""
    generator = torch.Generator().manual_seed(workload.seed)
    query, key, value, upstream = (
        torch.randn(workload.batch, heads, length, channels, generator=generator).to(
            workload.device, getattr(torch, workload.dtype)
        )
        for heads, length, channels in (
            (workload.heads, workload.query_length, workload.head_dim),
            (workload.kv_heads, workload.key_length, workload.head_dim),
            (workload.kv_heads, workload.key_length, workload.value_dim),
            (workload.heads, workload.query_length, workload.value_dim),
        )
    )
    if workload.mode == "fwd":
        attend(query, key, value)
        return
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    with torch.enable_grad():
        torch.autograd.grad(attend(*inputs), inputs, upstream)


def _cpu_obstacles() -> list[str]:
    found = []
    capability = torch.backends.cpu.get_cpu_capability()
    if sys.platform == "darwin" or not capability.startswith("AVX"):
        found.append(f"compiled FlexAttention needs an x86 CPU with AVX2, this one has {capability}")
    compiler = os.environ.get("CXX") or ("cl" if sys.platform == "win32" else "g++")
    if shutil.which(compiler) is None:
        found.append(
            f"FlexAttention on a CPU compiles C++, and there is no compiler {compiler!r}; install it or set CXX"
        )
    return found
