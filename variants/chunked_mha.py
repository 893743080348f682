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
    equation=(
        r"o_i = \frac{\sum_t e^{m_t - m} \sum_{j \in t} e^{s\,q_i \cdot k_j - m_t}\, v_j}{\sum_t e^{m_t - m} \sum_{j "
        r"\in t} e^{s\,q_i \cdot k_j - m_t}}, \quad m_t = \max_{j \in t} s\,q_i \cdot k_j, \quad m = \max_t m_t"
    ),
    exact_when="always",
    traps=(
        (
            "Training is linear in memory only because the backward computes the scores again: five products for the "
            "forward's two. Chunks alone would not do it."
        ),
        (
            "Every tile is some calls of operators: at short lengths, and on a GPU, these cost more than what they "
            "compute."
        ),
    ),
)
