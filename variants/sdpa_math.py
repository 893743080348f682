"""PyTorch's SDPA held to its math kernel: the formula in ATen operators, with the N×N scores in memory."""

from __future__ import annotations

from torch.nn.attention import SDPBackend

from variants._sdpa import PLAIN, sdpa_variant

VARIANT = sdpa_variant(
    name="sdpa_math",
    backend=SDPBackend.MATH,
    summary="PyTorch's own composition of operators, with all scores in memory.",
    paper=PLAIN,
    memory=2,
    traps=("This is what SDPA falls back to without a word where no fused kernel takes a call.",),
)
