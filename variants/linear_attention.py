"""Linear attention: φ(Q)(φ(K)ᵀV), normalised, with φ(x) = elu(x) + 1 (Transformers are RNNs, arXiv 2006.16236).

Another attention than softmax's, not an approximation of it: models are trained with it. It has no scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from variants import _kernelized
from variants._contract import Complexity, NoParameters, Paper, Variant, Workload
from variants._linear import build, flops, reference

if TYPE_CHECKING:
    from collections.abc import Sequence


def obstacles(workload: Workload, parameters: NoParameters) -> Sequence[str]:
    reasons = _kernelized.obstacles(workload, name="linear attention")
    if workload.scale is not None:
        reasons.append(f"linear attention has no scores to scale, and the scale asked for is {workload.scale:g}")
    return reasons


VARIANT = Variant(
    name="linear_attention",
    family="kernel",
    exact=False,
    summary="Features elu + 1 in place of the softmax, summed up in one small state; models must be trained with it.",
    paper=Paper("Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention", 2020, "2006.16236"),
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"o_i = \frac{\varphi(q_i) \sum_j \varphi(k_j)^\top v_j}{\varphi(q_i) \cdot \sum_j \varphi(k_j)}, \quad "
        r"\varphi(x) = \operatorname{elu}(x) + 1"
    ),
    exact_when="never: it is another attention, not an approximation",
    traps=(
        "A model must be trained with it; put into one that was trained with softmax, it gives something else.",
        "It has no scores: no scale, no soft cap, no ALiBi, and no key can be left out of the state but padding.",
        (
            "Causal needs a scan in chunks: the sum of outer products at every position, as the formula is usually "
            "written down, takes N·D² numbers per head."
        ),
    ),
)
