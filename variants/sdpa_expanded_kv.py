"""Grouped heads as many models run them: key and value repeated for every query head, then PyTorch's SDPA.

The repetition is inside the call, so that its time and memory count. Without groups it is ``sdpa_auto``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from variants._contract import Attend, NoParameters, Paper, Workload
from variants._reference import expand_heads
from variants._sdpa import sdpa_variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_SDPA = sdpa_variant(
    name="sdpa_expanded_kv",
    backend=None,
    summary="Keys and values repeated for every query head, then whatever PyTorch chooses.",
    paper=Paper(
        "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", 2023, "2305.13245"
    ),
    memory=1,
)


def _expanded(workload: Workload) -> Workload:
    """What SDPA gets to see."""
    return replace(workload, kv_heads=workload.heads)


def build(workload: Workload, parameters: NoParameters) -> Attend:
    attend = _SDPA.build(_expanded(workload), parameters)

    def attend_expanded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, expand_heads(key, workload), expand_heads(value, workload))

    return attend_expanded


def obstacles(workload: Workload, parameters: NoParameters) -> Sequence[str]:
    return _SDPA.obstacles(_expanded(workload), parameters)


def flops(workload: Workload, parameters: NoParameters) -> int:
    return _SDPA.flops(_expanded(workload), parameters)


VARIANT = replace(
    _SDPA,
    build=build,
    obstacles=obstacles,
    flops=flops,
    traps=(
        "Keys and values are copied for every query head in every call: H / Hkv times what grouped heads would read.",
        "What runs after that is PyTorch's choice, as in `sdpa_auto`.",
    ),
)
