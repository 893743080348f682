"""PyTorch's SDPA with the choice of kernel left to it: what most models run."""

from __future__ import annotations

from variants._sdpa import PLAIN, sdpa_variant

VARIANT = sdpa_variant(
    name="sdpa_auto",
    backend=None,
    summary="Whatever PyTorch chooses; the record says what it was.",
    paper=PLAIN,
    memory=1,
    traps=(
        (
            "It may choose another kernel for each shape, the math kernel too, and says nothing: the record's "
            "`dispatched` does."
        ),
        "On a CPU values of another width than keys get the math kernel, and quadratic memory.",
    ),
)
