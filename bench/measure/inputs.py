"""The tensors of a workload: the same bytes for every variant, mask, mode and device.

Each tensor is drawn on the CPU in float32 by a generator of its own, seeded by the workload's seed, the tensor's name
and its shape, and only then rounded to the dtype and moved. So fewer key heads leave the query as it is, and a
float16 case sees the rounded values of the float32 one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import torch

from bench.errors import unknown
from bench.record import INPUTS

if TYPE_CHECKING:
    from torch import Tensor

    from variants._contract import Workload


class Inputs(NamedTuple):
    """Query ``(B, H, Nq, D)``, key ``(B, Hkv, Nk, D)``, value ``(B, Hkv, Nk, Dv)``, upstream ``(B, H, Nq, Dv)``.

    ``upstream`` is the gradient of the output: dense and random, since kernels misbehave on strides of zero.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    upstream: Tensor


def make(workload: Workload) -> Inputs:
    """The inputs of a workload on its device, contiguous, without gradients.

    Raises:
        WrongUsageError: no inputs of that name.

    """
    if workload.inputs not in INPUTS:
        raise unknown("inputs", workload.inputs, INPUTS)
    queries = (workload.batch, workload.heads, workload.query_length)
    keys = (workload.batch, workload.kv_heads, workload.key_length)
    shapes = {
        "query": (*queries, workload.head_dim),
        "key": (*keys, workload.head_dim),
        "value": (*keys, workload.value_dim),
        "upstream": (*queries, workload.value_dim),
    }
    return Inputs(**{name: _normal(name, shape, workload) for name, shape in shapes.items()})


def _normal(name: str, shape: tuple[int, ...], workload: Workload) -> Tensor:
    digest = hashlib.sha256(f"{workload.seed}:{name}:{shape}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    drawn = torch.randn(shape, generator=generator, dtype=torch.float32)
    return drawn.to(device=workload.device, dtype=getattr(torch, workload.dtype))
