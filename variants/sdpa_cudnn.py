"""PyTorch's SDPA held to cuDNN's fused kernel (CUDA only)."""

from __future__ import annotations

from torch.nn.attention import SDPBackend

from variants._sdpa import FLASH, sdpa_variant

VARIANT = sdpa_variant(
    name="sdpa_cudnn",
    backend=SDPBackend.CUDNN_ATTENTION,
    summary="cuDNN's fused attention.",
    paper=FLASH,
    memory=1,
    traps=(
        "CUDA only, and not every shape: what PyTorch refuses is an obstacle in its own words.",
        "What it gives for rows that see no key is not defined: such masks are refused.",
    ),
)
