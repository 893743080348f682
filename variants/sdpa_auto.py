"""PyTorch's SDPA with the choice of kernel left to it: what most models run."""

from __future__ import annotations

from variants._sdpa import PLAIN, sdpa_variant

VARIANT = sdpa_variant(
    name="sdpa_auto",
    backend=None,
    summary="Whatever PyTorch chooses; the record says what it was.",
    paper=PLAIN,
    memory=1,
)
