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
    traps=(
        "Values of another width than keys run the math kernel without a word; here that is refused.",
        (
            "PyTorch's causal flag is aligned top-left, so that it is used for square problems only; other masks are "
            "dense tensors, of N² bytes, and every pair of them is computed."
        ),
    ),
)
