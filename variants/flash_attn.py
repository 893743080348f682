"""The package flash-attn on CUDA: FlashAttention-2, or 3 as its own module for Hopper GPUs.

It takes ``(batch, length, heads, head_dim)``, which a transposed view is, aligns masks bottom-right as here, and knows
one window of keys to the left and to the right, a soft cap and ALiBi.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from variants._blocks import covered_pairs
from variants._contract import SOFTMAX, Attend, Complexity, Kernels, Paper, Variant, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import exact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

Version = Literal[2, 3]

_MODULES: dict[Version, str] = {2: "flash_attn", 3: "flash_attn_interface"}
_COMPUTE_CAPABILITY: dict[Version, tuple[int, int]] = {2: (8, 0), 3: (9, 0)}
_WIDEST_HEAD = 256
_TILE = (128, 64)  # queries and keys that its kernels take at once, about
_EVERYTHING = -1


@dataclass(frozen=True, slots=True)
class Parameters:
    """Which FlashAttention: 2 is the module ``flash_attn``, 3 ``flash_attn_interface``."""

    version: Version = 2

    def __post_init__(self) -> None:
        if self.version not in get_args(Version):
            raise ValueError(f"version must be 2 or 3, got {self.version}")


def build(workload: Workload, parameters: Parameters) -> Attend:
    kernel = importlib.import_module(_MODULES[parameters.version]).flash_attn_func
    options = arguments(Pattern.of(workload))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = kernel(*(tensor.transpose(1, 2) for tensor in (query, key, value)), **options)
        by_length: Tensor = output[0] if isinstance(output, tuple) else output  # some 3s give the log-sum-exp too
        return by_length.transpose(1, 2)

    return attend


def arguments(pattern: Pattern) -> dict[str, Any]:
    """The package's words for a mask. A window of (left, right) keys beside the query's own, -1 for all."""
    mask = pattern.mask
    lefts = [width for width in (None if mask.window is None else mask.window - 1, mask.band) if width is not None]
    left = min(lefts, default=_EVERYTHING)
    right = 0 if mask.is_causal else _EVERYTHING if mask.band is None else mask.band
    options: dict[str, Any] = {
        "softmax_scale": pattern.workload.softmax_scale,
        "causal": mask.is_causal,
        "window_size": (left, right) if lefts else (_EVERYTHING, _EVERYTHING),
    }
    if mask.softcap is not None:
        options["softcap"] = mask.softcap
    if mask.alibi:
        options["alibi_slopes"] = pattern.slopes
    return options


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    mask = Mask.parse(workload.mask)
    reasons = [
        f"{term}: the package knows causal masks and windows only, and no other pairs to hide"
        for term in mask.unsupported("causal", "window", "band", "softcap", "alibi")
    ]
    if mask.alibi and parameters.version > 2:  # noqa: PLR2004  # the version that has it
        reasons.append("alibi: FlashAttention-3 has no slopes")
    if workload.dtype not in ("float16", "bfloat16"):
        reasons.append(f"the package computes in half precision, not in {workload.dtype}")
    if workload.value_dim != workload.head_dim:
        reasons.append(f"the package has values as wide as keys, not {workload.value_dim} to {workload.head_dim}")
    if workload.head_dim > _WIDEST_HEAD:
        reasons.append(f"the package takes head dimensions up to {_WIDEST_HEAD}, not {workload.head_dim}")
    if importlib.util.find_spec(_MODULES[parameters.version]) is None:
        how = "pip install flash-attn --no-build-isolation" if parameters.version == 2 else "build it from its sources"  # noqa: PLR2004
        reasons.append(f"{_MODULES[parameters.version]} is not installed; {how}")
    return reasons + _device_obstacles(workload, parameters)


def _device_obstacles(workload: Workload, parameters: Parameters) -> list[str]:
    if workload.device == "cpu":
        return ["the package's kernels need CUDA"]
    if not torch.cuda.is_available():
        return ["there is no CUDA device here"]
    least, capability = _COMPUTE_CAPABILITY[parameters.version], torch.cuda.get_device_capability()
    if capability < least:
        needed, got = (".".join(map(str, version)) for version in (least, capability))
        return [f"FlashAttention-{parameters.version} needs compute capability {needed}, this device has {got}"]
    return []


def flops(workload: Workload, parameters: Parameters) -> int:
    """Two products over the tiles that hold anything; five in the backward (scores again)."""
    pairs = covered_pairs(Pattern.of(workload, "cpu"), *_TILE)
    head, value = workload.head_dim, workload.value_dim
    columns = workload.by_mode(head + value, 3 * head + 2 * value)
    return 2 * workload.heads * pairs * columns


VARIANT = Variant(
    name="flash_attn",
    family="exact",
    exact=True,
    summary="The package flash-attn, FlashAttention-2 or 3, in half precision on CUDA.",
    paper=Paper("FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023, "2307.08691"),
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=exact,
    flops=flops,
    complexity=Complexity(time=2, memory=1),
    equation=SOFTMAX,
    exact_when="always",
    traps=(
        "Half precision on CUDA only, heads of up to 256 channels, values as wide as keys.",
        "It knows causal masks, one window, a soft cap and ALiBi, and hides no other pairs: no padding, no documents.",
        "Version 3 is a module of its own, for Hopper, built from its sources: `flash_attn.version=3`.",
    ),
    kernels={"cuda": Kernels((r"flash_fwd|flash_bwd|FlashAttnFwd|FlashAttnBwd",), (r"pytorch_flash", r"^aten::bmm$"))},
    package="flash-attn",
)
