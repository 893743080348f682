"""Exact attention in chunks of queries and keys, with memory linear in the length, as ``variants._chunked`` has it."""

from __future__ import annotations

from variants._chunked import Parameters, build, flops, obstacles
from variants._contract import Complexity, Paper, Variant
from variants._reference import exact

VARIANT = Variant(
    name="chunked_mha",
    family="exact",
    exact=True,
    summary="Tiles with an online softmax in plain PyTorch, recomputed in the backward: exact, memory linear in N.",
    paper=Paper("Self-attention Does Not Need O(n²) Memory", 2021, "2112.05682"),
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=exact,
    flops=flops,
    complexity=Complexity(time=2, memory=1),
)
