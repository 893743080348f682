"""FlexAttention, compiled, with a block mask: any mask of the grammar as one fused kernel."""

from __future__ import annotations

from variants import _flex
from variants._contract import SOFTMAX, Claim, Complexity, Paper, Variant
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
    equation=SOFTMAX,
    exact_when="always",
    traps=(
        "It compiles for seconds, once per shape: that is set-up, recorded apart.",
        "On a CPU it has no backward and no float64.",
        (
            "Not compiled it is another algorithm, with all scores in memory: a run that was not compiled is "
            "recorded as fallen back."
        ),
    ),
    claims=(
        Claim(
            statement="90% of FlashAttention-2's speed in the forward",
            metric="speedup",
            value=0.9,
            over="sdpa_flash",
            mode="fwd",
            source="FlexAttention, announcement on PyTorch's blog (2024), on an A100",
        ),
        Claim(
            statement="85% of FlashAttention-2's speed in the backward",
            metric="speedup",
            value=0.85,
            over="sdpa_flash",
            mode="bwd",
            source="FlexAttention, announcement on PyTorch's blog (2024), on an A100",
        ),
    ),
    kernels=_flex.KERNELS,
)
