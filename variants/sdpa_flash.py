"""PyTorch's SDPA held to its flash kernel, on a CPU or on CUDA."""

from __future__ import annotations

from torch.nn.attention import SDPBackend

from variants._sdpa import FLASH, FLASH_CLAIMS, sdpa_variant

VARIANT = sdpa_variant(
    name="sdpa_flash",
    backend=SDPBackend.FLASH_ATTENTION,
    summary="Tiles with an online softmax: exact, and no score leaves the chip.",
    paper=FLASH,
    memory=1,
    claims=FLASH_CLAIMS,
)
