"""What an approximation costs: the output against exact attention under the same mask, in float64, on sampled rows.

And its weights against the exact ones, with the mechanism's own dense formula asked for them: see
:mod:`bench.fidelity.probe`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch

from bench.fidelity import metrics, probe
from bench.record import Fidelity, finite
from variants._pattern import Pattern
from variants._reference import exact, expand_heads, pattern_weights

if TYPE_CHECKING:
    from torch import Tensor

    from bench.measure.oracle import Problem, Truth

_MOST_PROBED_ROWS = 16
_SAME = Fidelity(
    relative_error=0.0,
    cosine=1.0,
    mass_recall=1.0,
    total_variation=0.0,
    overlap=1.0,
    top8_recall=1.0,
    spectral_error=0.0,
    density=1.0,
)


def fidelity(problem: Problem, truth: Truth, output: Tensor) -> Fidelity:
    """Relative error and cosine of the variant's ``output``, ``(B, H, Nq, Dv)``, and how far its weights are.

    The relative error is ‖o − e‖ / ‖e‖ over all sampled rows; the cosine is the mean over rows that see anything.
    """
    given = output.detach()[:, :, truth.rows.to(output.device)].double()
    if problem.variant.exact and problem.variant.reference is exact:
        return _compared(_SAME, given, truth.output)
    weights = _exact_weights(problem, truth)
    right = weights @ expand_heads(truth.operands.value.detach().double(), problem.workload)
    return _compared(_SAME if problem.variant.exact else of_weights(problem, truth, weights), given, right)


def of_weights(problem: Problem, truth: Truth, weights: Tensor) -> Fidelity:
    """All that can be said of the variant's weights against the exact ``weights`` of sampled rows, ``(B, H, R, Nk)``.

    Of at most sixteen of these rows. Nothing where the value is not used, or the mechanism has no weights over keys.
    """
    nothing = Fidelity(relative_error=None, cosine=None)
    if "value" not in problem.variant.uses:
        return nothing
    count = min(len(truth.rows), _MOST_PROBED_ROWS)
    chosen = torch.linspace(0, len(truth.rows) - 1, count).round().long()
    query, key, value = (tensor.detach().double() for tensor in truth.operands.inputs)
    asked = truth.rows[chosen]

    def output(value: Tensor) -> Tensor:
        return problem.reference((query, key, value), rows=asked, routing=truth.routing)

    given = probe.by_gradient(output, value, rows=count, workload=problem.workload)
    if given is None:
        return nothing
    right = weights[:, :, chosen.to(weights.device)]
    allowed, _ = Pattern.of(problem.workload, query.device).rows(asked)
    return Fidelity(
        relative_error=None,
        cosine=None,
        mass_recall=finite(metrics.mass_recall(given, right)),
        total_variation=finite(metrics.total_variation(given, right)),
        overlap=finite(metrics.overlap(given, right)),
        top8_recall=finite(metrics.top_recall(given, right, allowed)),
        spectral_error=finite(metrics.spectral_error(given, right)),
        density=finite(metrics.density(given, allowed)),
    )


def _compared(of_weights: Fidelity, given: Tensor, right: Tensor) -> Fidelity:
    """With the distance of the output ``given`` from the ``right`` one, both ``(B, H, R, Dv)``."""
    norms = right.norm(dim=-1) * given.norm(dim=-1)
    cosines = ((right * given).sum(dim=-1) / norms)[norms > 0]
    size = float(right.norm())
    return msgspec.structs.replace(
        of_weights,
        relative_error=finite(float((given - right).norm()) / size) if size else None,
        cosine=finite(float(cosines.mean())) if len(cosines) else None,
    )


def _exact_weights(problem: Problem, truth: Truth) -> Tensor:
    """Of the sampled rows, ``(B, H, R, Nk)`` float64."""
    query, key = (tensor.detach().double() for tensor in truth.operands.inputs[:2])
    pattern = Pattern.of(problem.workload, query.device)
    return pattern_weights(query, expand_heads(key, problem.workload), pattern=pattern, rows=truth.rows)
