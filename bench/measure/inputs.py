"""The tensors of a workload: the same bytes for every variant, mask, mode and device.

Each tensor is drawn on the CPU in float32 by a generator of its own, seeded by the workload's seed, the tensor's name
and its shape, and only then rounded to the dtype and moved. So fewer key heads leave the query as it is, and a
float16 case sees the rounded values of the float32 one. Those of a model (``--inputs minilm``) are computed in float32
on the CPU as well.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import torch

from bench.fidelity import sources

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
        WrongUsageError: no inputs of that name, or none in this shape (see :func:`bench.fidelity.fits.obstacles`).

    """
    if sources.parse(workload.inputs).kind == "normal":
        return Inputs(*(_normal(name, shape, workload) for name, shape in _shapes(workload).items()))
    from bench.fidelity import activations

    upstream = _normal("upstream", _shapes(workload)["upstream"], workload)
    query, key, value = (_as_asked(tensor, workload) for tensor in activations.make(workload))
    return Inputs(query, key, value, upstream)


def _shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    queries = (workload.batch, workload.heads, workload.query_length)
    keys = (workload.batch, workload.kv_heads, workload.key_length)
    return {
        "query": (*queries, workload.head_dim),
        "key": (*keys, workload.head_dim),
        "value": (*keys, workload.value_dim),
        "upstream": (*queries, workload.value_dim),
    }


def _normal(name: str, shape: tuple[int, ...], workload: Workload) -> Tensor:
    digest = hashlib.sha256(f"{workload.seed}:{name}:{shape}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return _as_asked(torch.randn(shape, generator=generator, dtype=torch.float32), workload)


def _as_asked(drawn: Tensor, workload: Workload) -> Tensor:
    return drawn.to(device=workload.device, dtype=getattr(torch, workload.dtype))
