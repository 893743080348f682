"""FlexAttention, compiled, with a block mask: any mask of the grammar as one fused kernel."""

from __future__ import annotations

from variants import _flex
from variants._contract import Complexity, Paper, Variant
from variants._pattern import Pattern
from variants._reference import exact

VARIANT = Variant(
    name="flex",
    family="exact",
    exact=True,
    summary="A kernel compiled for the mask, which skips the blocks that the mask hides.",
    paper=Paper("Flex Attention: A Programming Model for Generating Optimized Attention Kernels", 2024, "2412.05496"),
    build=lambda workload, parameters: _flex.compiled(Pattern.of(workload)),
    obstacles=lambda workload, parameters: _flex.obstacles(workload),
    reference=exact,
    flops=lambda workload, parameters: _flex.flops(Pattern.of(workload, "cpu")),
    complexity=Complexity(time=2, memory=1),
    kernels=_flex.KERNELS,
)
