"""What an approximation costs: the output against exact attention under the same mask, in float64, on sampled rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bench.record import Fidelity, finite
from variants._pattern import Pattern
from variants._reference import exact, expand_heads, pattern_weights

if TYPE_CHECKING:
    from torch import Tensor

    from bench.measure.oracle import Problem, Truth

_MOST_MASS_ROWS = 8


def fidelity(problem: Problem, truth: Truth, output: Tensor) -> Fidelity:
    """Relative error and cosine of the variant's ``output``, ``(B, H, Nq, Dv)``, and the attention mass it looks at.

    The relative error is ‖o − e‖ / ‖e‖ over all sampled rows; the cosine is the mean over rows that see anything.
    """
    given = output.detach()[:, :, truth.rows.to(output.device)].double()
    if problem.variant.exact and problem.variant.reference is exact:
        return _compared(given, truth.output, mass_recall=1.0)
    weights = _exact_weights(problem, truth)
    right = weights @ expand_heads(truth.operands.value.detach().double(), problem.workload)
    recall = 1.0 if problem.variant.exact else mass_recall(problem, truth, weights)
    return _compared(given, right, mass_recall=recall)


def mass_recall(problem: Problem, truth: Truth, weights: Tensor) -> float | None:
    """Share of the exact ``weights``, ``(B, H, R, Nk)``, on pairs to which the variant gives a weight other than zero.

    The output is linear in V, so one backward pass of the variant's reference, with row r's upstream gradient a one in
    channel r, brings out the weights of as many rows as there are channels for the heads that share a value, of which
    eight are enough: O(rows · Nk · D), at any length. None if V is not used, or has too few channels.
    """
    workload, operands = problem.workload, truth.operands
    count = min(len(truth.rows), workload.value_dim // workload.group, _MOST_MASS_ROWS)
    if count < 1 or "value" not in problem.variant.uses:
        return None
    chosen = torch.linspace(0, len(truth.rows) - 1, count).round().long()
    query, key, value = (tensor.detach().double() for tensor in operands.inputs)
    value.requires_grad_()
    with torch.enable_grad():
        output = problem.reference((query, key, value), rows=truth.rows[chosen], routing=truth.routing)
    upstream = torch.zeros_like(output)
    for head in range(workload.heads):  # heads that share a value write into channels of their own
        first = head % workload.group * count
        upstream[:, head, :, first : first + count] = torch.eye(count, dtype=output.dtype, device=output.device)
    (effective,) = torch.autograd.grad((output * upstream).sum(), value)  # (B, Hkv, Nk, Dv): (head in group, row)
    looked_at = (effective[..., : workload.group * count].mT != 0).reshape(
        workload.batch, workload.heads, count, workload.key_length
    )
    mass = weights[:, :, chosen.to(weights.device)]
    total = float(mass.sum())
    return finite(float((mass * looked_at).sum()) / total) if total else None


def _compared(given: Tensor, right: Tensor, *, mass_recall: float | None) -> Fidelity:
    norms = right.norm(dim=-1) * given.norm(dim=-1)
    cosines = ((right * given).sum(dim=-1) / norms)[norms > 0]
    size = float(right.norm())
    return Fidelity(
        relative_error=finite(float((given - right).norm()) / size) if size else None,
        cosine=finite(float(cosines.mean())) if len(cosines) else None,
        mass_recall=mass_recall,
    )


def _exact_weights(problem: Problem, truth: Truth) -> Tensor:
    """Of the sampled rows, ``(B, H, R, Nk)`` float64."""
    query, key = (tensor.detach().double() for tensor in truth.operands.inputs[:2])
    pattern = Pattern.of(problem.workload, query.device)
    return pattern_weights(query, expand_heads(key, problem.workload), pattern=pattern, rows=truth.rows)
