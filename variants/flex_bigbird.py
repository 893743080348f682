"""BigBird as a block mask of FlexAttention: the table of ``bigbird``, in one compiled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from variants import _bigbird, _flex
from variants._bigbird import PAPER, Parameters, composed, reference
from variants._contract import Attend, Complexity, Variant, Workload
from variants._pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Sequence


def build(workload: Workload, parameters: Parameters) -> Attend:
    return _flex.compiled(Pattern.of(composed(workload, parameters)))


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    return _bigbird.obstacles(workload, parameters) + _flex.obstacles(workload)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Two products over the blocks that are not skipped, and the backward's."""
    return _flex.flops(Pattern.of(composed(workload, parameters), "cpu"))


VARIANT = Variant(
    name="flex_bigbird",
    family="sparse",
    exact=False,
    summary="The blocks of bigbird in a kernel compiled for them, which skips the others.",
    paper=PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"O = \operatorname{softmax}(s\,Q K^\top + M)\,V, \quad M_{ij} = 0 \text{ in the window, in global and in "
        r"random blocks, else } -\infty"
    ),
    exact_when="the blocks cover every pair",
    traps=(
        "It compiles for seconds, once per shape: that is set-up, recorded apart.",
        "On a CPU FlexAttention has no backward and no float64.",
    ),
    kernels=_flex.KERNELS,
)
