"""BigBird's blocks laid over a workload's mask: what the variants of BigBird share.

Both compute exact attention under the workload's mask and the table of :func:`variants._pattern.bigbird_table`:
a window of three blocks, global blocks at both ends, random ones (Big Bird: Transformers for Longer Sequences,
arXiv 2007.14062).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from variants._contract import Paper, Workload
from variants._mask import BigBird, Mask
from variants._reference import exact

if TYPE_CHECKING:
    from torch import Tensor

PAPER = Paper("Big Bird: Transformers for Longer Sequences", 2020, "2007.14062")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Keys in a block; global blocks, half at each end; random blocks per block of queries. The window is three."""

    block: int = 64
    global_blocks: int = 2
    random_blocks: int = 3

    def __post_init__(self) -> None:
        for name, least in (("block", 1), ("global_blocks", 0), ("random_blocks", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def term(self) -> BigBird:
        """These blocks as a term of the mask grammar."""
        return BigBird(self.block, self.global_blocks, self.random_blocks)


def composed(workload: Workload, parameters: Parameters) -> Workload:
    """The workload whose exact attention this is: under its own mask and the blocks."""
    mask = Mask.parse(workload.mask)
    return replace(workload, mask=str(replace(mask, bigbird=parameters.term)))


def obstacles(workload: Workload, parameters: Parameters) -> list[str]:
    """Masks that BigBird does not honour: all but padding, and its own blocks."""
    mask = Mask.parse(workload.mask)
    reasons = [f"{term}: {why_not(term.partition(':')[0])}" for term in mask.unsupported("padding", "bigbird")]
    if mask.bigbird not in (None, parameters.term):
        reasons.append(f"the mask asks for the blocks {mask.bigbird} and the parameters for {parameters.term}")
    return reasons


def why_not(term: str) -> str:
    """Why BigBird cannot honour a term of a mask, given by its name."""
    match term:
        case "softcap" | "alibi":
            return "BigBird leaves its scores as they are"
        case "causal" | "window" | "prefix":
            return "BigBird looks both ways: its global and random blocks lie before and after a query"
        case _:
            return "BigBird has a pattern of its own, whose global blocks span the whole sequence"


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    parameters: Parameters,
    rows: Tensor,
    routing: Any = None,
) -> Tensor:
    """Exact attention of the given query rows under the composed mask."""
    return exact(query, key, value, workload=composed(workload, parameters), rows=rows, routing=routing)
