"""PyTorch's SDPA held to its memory-efficient kernel (CUTLASS; CUDA only)."""

from __future__ import annotations

from torch.nn.attention import SDPBackend

from variants._sdpa import EFFICIENT, sdpa_variant

VARIANT = sdpa_variant(
    name="sdpa_efficient",
    backend=SDPBackend.EFFICIENT_ATTENTION,
    summary="The memory-efficient kernel: also float32, and masks as tensors.",
    paper=EFFICIENT,
    memory=1,
    traps=(
        "CUDA only.",
        "What it gives for rows that see no key is not defined: such masks are refused there.",
    ),
)
