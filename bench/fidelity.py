"""What an approximation costs: the output against exact attention under the same mask, in float64, on sampled rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bench.record import Fidelity, finite
from variants._pattern import Pattern
from variants._reference import exact, expand_heads, pattern_weights

if TYPE_CHECKING:
    from torch import Tensor

    from bench.oracle import Problem, Truth


def fidelity(problem: Problem, truth: Truth, output: Tensor) -> Fidelity:
    """Relative error and cosine of the variant's ``output``, ``(B, H, Nq, Dv)``, and the attention mass it looks at.

    The relative error is ‖o − e‖ / ‖e‖ over all sampled rows; the cosine is the mean over rows that see anything.
    """
    given = output.detach()[:, :, truth.rows.to(output.device)].double()
    right = truth.output if problem.variant.reference is exact else _exact(problem, truth)
    norms = right.norm(dim=-1) * given.norm(dim=-1)
    cosines = ((right * given).sum(dim=-1) / norms)[norms > 0]
    size = float(right.norm())
    return Fidelity(
        relative_error=finite(float((given - right).norm()) / size) if size else None,
        cosine=finite(float(cosines.mean())) if len(cosines) else None,
        mass_recall=1.0 if problem.variant.exact else mass_recall(problem, truth),
    )


def mass_recall(problem: Problem, truth: Truth) -> float | None:
    """Share of the exact attention mass on pairs to which the variant gives a non-zero weight, over the first rows.

    The output is linear in V, so one backward pass of the variant's reference, with row r's upstream gradient a one in
    channel r, brings out the weights of Dv rows at once: O(rows · Nk · D), at any length. None if V is not used so.
    """
    workload, operands = problem.workload, truth.operands
    count = min(len(truth.rows), workload.value_dim // workload.group)
    if count < 1 or "value" not in problem.variant.uses:
        return None
    chosen = torch.linspace(0, len(truth.rows) - 1, count).round().long()
    rows = truth.rows[chosen]
    query, key, value = (tensor.detach().double() for tensor in operands.inputs)
    value.requires_grad_()
    with torch.enable_grad():
        output = problem.reference((query, key, value), rows=rows, routing=problem.route(operands))
    upstream = torch.zeros_like(output)
    for head in range(workload.heads):  # heads that share a value write into channels of their own
        first = head % workload.group * count
        upstream[:, head, :, first : first + count] = torch.eye(count, dtype=output.dtype, device=output.device)
    (weights,) = torch.autograd.grad(output, value, upstream)  # (B, Hkv, Nk, Dv), channels are (head in group, row)
    looked_at = weights[..., : workload.group * count].mT != 0
    looked_at = looked_at.reshape(workload.batch, workload.heads, count, workload.key_length)
    pattern = Pattern.of(workload, query.device)
    mass = pattern_weights(query, expand_heads(key, workload), pattern=pattern, rows=rows)
    total = float(mass.sum())
    return finite(float((mass * looked_at).sum()) / total) if total else None


def _exact(problem: Problem, truth: Truth) -> Tensor:
    with torch.no_grad():
        inputs = (tensor.detach().double() for tensor in truth.operands.inputs)
        return exact(*inputs, workload=problem.workload, rows=truth.rows)
