"""The attention weights of any mechanism, from outside: its output is linear in the value, so V = I brings them out.

Symbols: B batch, H heads, Hkv heads of the value, N and Nk lengths, Dv channels of a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from variants._contract import Attend, Workload

_LEAK = 1e-9


def by_identity(attend: Attend, query: Tensor, key: Tensor, *, workload: Workload) -> Tensor:
    """All weights, ``(B, H, Nq, Nk)``: the value is the identity, some columns of it at a time, as many as it has."""
    columns = workload.value_dim
    shape = (workload.batch, workload.kv_heads, workload.key_length, columns)
    blocks = []
    with torch.no_grad():
        for first in range(0, workload.key_length, columns):
            value = query.new_zeros(shape)
            count = min(columns, workload.key_length - first)
            value[:, :, first : first + count, :count] = torch.eye(count, dtype=query.dtype, device=query.device)
            blocks.append(attend(query, key, value)[..., :count].clone())
    return torch.cat(blocks, dim=-1)


def by_gradient(output: Callable[[Tensor], Tensor], value: Tensor, *, rows: int, workload: Workload) -> Tensor | None:
    """Weights of some rows, ``(B, H, rows, Nk)``, at any length: one backward pass for as many rows as fit in channels.

    ``output`` gives the rows ``(B, H, rows, Dv)`` for a value ``(B, Hkv, Nk, Dv)``. With the upstream gradient of row r
    a one in channel r, of heads that share a value in channels of their own, the gradient of the value is the
    transposed weights. None if the value has too few channels, or if the mechanism mixes channels, so that it has no
    weights over keys.
    """
    value = value.detach().clone().requires_grad_()
    with torch.enable_grad():
        computed = output(value)
    if not computed.requires_grad:
        return None
    channels = workload.value_dim // workload.group
    at_once = channels - 1 if workload.value_dim == workload.group * channels and channels > 1 else channels
    if at_once < 1:
        return None
    blocks = []
    for first in range(0, rows, at_once):
        found = _block(computed, value, first, min(at_once, rows - first), workload)
        if found is None:
            return None
        blocks.append(found)
    return torch.cat(blocks, dim=2)


def _block(computed: Tensor, value: Tensor, first: int, count: int, workload: Workload) -> Tensor | None:
    upstream = torch.zeros_like(computed)
    used = torch.zeros(workload.value_dim, dtype=torch.bool, device=value.device)
    ones = torch.eye(count, dtype=computed.dtype, device=computed.device)
    for head in range(workload.heads):
        channel = head % workload.group * count
        upstream[:, head, first : first + count, channel : channel + count] = ones
        used[channel : channel + count] = True
    (gradient,) = torch.autograd.grad(computed, value, upstream, retain_graph=True)
    if float(gradient[..., ~used].abs().sum()) > _LEAK * float(gradient.abs().sum()):
        return None
    shared = gradient[..., : workload.group * count].mT
    return shared.reshape(workload.batch, workload.heads, count, workload.key_length)
