"""Is what came back an attention output at all, and were the inputs left alone? Each answer is an objection or None."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure.call import Operands, Result
    from variants._contract import Workload


def malformed(output: object, workload: Workload, device: torch.device) -> str | None:
    """Another type, shape, dtype or device than an attention output has."""
    if not isinstance(output, torch.Tensor):
        return f"expected a tensor, got {type(output).__name__}"
    shape = (workload.batch, workload.heads, workload.query_length, workload.value_dim)
    if tuple(output.shape) != shape:
        return f"expected an output of shape {shape}, got {tuple(output.shape)}"
    if output.dtype != getattr(torch, workload.dtype):
        return f"expected an output of dtype {workload.dtype}, got {str(output.dtype).removeprefix('torch.')}"
    if output.device != device:
        return f"expected an output on {device.type}, got one on {output.device.type}"
    return None


def not_finite(result: Result) -> str | None:
    """NaN or infinity in the output or a gradient."""
    named = {"output": result.output}
    for name, gradient in zip(("query", "key", "value"), result.gradients or (), strict=False):
        if gradient is not None:
            named[f"gradient of {name}"] = gradient
    for name, tensor in named.items():
        if math.isfinite(float(tensor.detach().sum(dtype=torch.float64))):  # quicker than to look at each
            continue
        count = int((~torch.isfinite(tensor.detach())).sum())
        if count:
            return f"{count} of {tensor.numel()} numbers of the {name} are not finite"
    return None


def aliased(result: Result, operands: Operands) -> str | None:
    """An output that lies in the memory of an input."""
    for name, tensor in zip(("query", "key", "value"), operands.inputs, strict=True):
        if address_of(result.output) == address_of(tensor):
            return f"the output shares its memory with {name}"
    return None


def reused(first: torch.Tensor, later_addresses: Sequence[int]) -> str | None:
    """A later output, of the second call on, in the place of the first one, which is still in use."""
    for call, address in enumerate(later_addresses, start=2):
        if address == address_of(first):
            which = "the second call" if call == 2 else f"call {call}"  # noqa: PLR2004
            return f"the same tensor came back twice: {which} overwrote the result of the first"
    return None


def changed_inputs(operands: Operands, before: Operands) -> str | None:
    """An input that no longer has the values it was given with."""
    for name, tensor, original in zip(("query", "key", "value"), operands.inputs, before.inputs, strict=True):
        if not torch.equal(tensor.detach(), original):
            return f"{name} was changed in place"
    return None


def address_of(tensor: torch.Tensor) -> int:
    """Where the memory begins that a tensor lies in."""
    return tensor.untyped_storage().data_ptr()
