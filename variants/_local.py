"""A window of neighbours laid over a workload's mask: what ``local`` and ``flex_local`` share.

Both compute exact attention under the workload's mask and, with W the window, ``window:W`` (W keys, the query's own the
last) where the mask is causal, ``band:W`` (W keys to either side) where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from variants._contract import Paper, Workload
from variants._mask import Mask
from variants._reference import exact

if TYPE_CHECKING:
    from torch import Tensor

PAPER = Paper("Longformer: The Long-Document Transformer", 2020, "2004.05150")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Keys in sight: to either side, or causal so many with the query's own."""

    window: int = 256

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")


def composed(workload: Workload, parameters: Parameters) -> Workload:
    """The workload whose exact attention this is: under its own mask and the window."""
    mask = Mask.parse(workload.mask)
    if mask.is_causal:
        mask = replace(mask, causal=False, window=min(parameters.window, mask.window or parameters.window))
    else:
        own = parameters.window if mask.band is None else mask.band
        mask = replace(mask, band=min(parameters.window, own))
    return replace(workload, mask=str(mask))


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
