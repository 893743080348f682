"""Is the output right? The variant against its own dense formula in float64, on sampled query rows.

One norm throughout: the largest absolute difference. The tolerance is what rounding explains,

    max(4 × error of the same formula in the working dtype, 32 · ε · scale)

(for float64, of which nothing is more exact, the formula's error in float32 times the ratio of their ε)

with ε of the dtype that kernels accumulate in (float32 for half precision) and scale = max(|V|, |truth|) for the
output, or the largest true gradient for a gradient; in half precision also 6 · ε(dtype) · max|truth|, the rounding of
the result. Outputs are judged row by row, with the formula's error taken over neighbours in the sample: a row that sees
two keys is larger than one that sees thousands, and must not lend it its tolerance. Gradients are judged by tensor;
where terms cancel, ε times their size is explained too. What is reported is where it fills most of its tolerance.

One evaluation may round well by luck. So before anything is called wrong, the formula is evaluated in the working dtype
a few times more, on inputs that are off by up to ε: its largest error counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from bench.measure.call import Operands

if TYPE_CHECKING:
    from torch import Tensor

    from variants._contract import Variant, Workload

_NAIVE_ERRORS = 4
_ROUNDINGS = 32
_RESULT_ROUNDINGS = 6
_NEIGHBOURS = 2
_SHAKES = 4
_Evaluated = tuple["Tensor", "tuple[Tensor, ...] | None"]
_GRADIENT_NAMES = ("query", "key", "value")


@dataclass(frozen=True, slots=True)
class Problem:
    """A variant on a workload: what the reference needs to know."""

    variant: Variant
    workload: Workload
    parameters: Any

    def route(self, operands: Operands) -> Any:
        """The discrete choices that the variant makes for these inputs, or None."""
        if self.variant.route is None:
            return None
        with torch.no_grad():
            return self.variant.route(
                operands.query.detach(), operands.key.detach(), workload=self.workload, parameters=self.parameters
            )

    def reference(self, inputs: tuple[Tensor, ...], *, rows: Tensor, routing: Any) -> Tensor:
        return self.variant.reference(
            *inputs, workload=self.workload, parameters=self.parameters, rows=rows, routing=routing
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """An error with its tolerance, and where it is: ``row 17`` or ``the gradient of key``."""

    error: float
    tolerance: float
    place: str

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return f"{self.place} is off by {self.error:.2g}, where rounding explains {self.tolerance:.2g}"


@dataclass(frozen=True)
class Truth:
    """The reference on some rows in float64, and in the working dtype to learn its rounding.

    ``output`` and ``rounded`` are ``(B, H, R, Dv)``; gradients have the shapes of query, key and value. ``routing`` is
    what the variant chose for ``operands``.
    """

    rows: Tensor
    output: Tensor
    rounded: Tensor
    gradients: tuple[Tensor, ...] | None
    rounded_gradients: tuple[Tensor, ...] | None
    operands: Operands
    routing: Any
    problem: Problem

    @cached_property
    def shaken(self) -> list[tuple[Tensor, tuple[Tensor, ...] | None]]:
        """Outputs and gradients of the formula in the working dtype, on inputs that are off by up to ε."""
        return [self._shaken(torch.Generator().manual_seed(seed)) for seed in range(_SHAKES)]

    def _shaken(self, generator: torch.Generator) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        epsilon = _accumulation_epsilon(_coarse(self.operands.query.dtype))

        def off(tensor: Tensor) -> Tensor:
            noise = 2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1
            return tensor.detach().double() * (1 + epsilon * noise.to(tensor.device))

        inputs = replace(self.operands, **dict(zip(_GRADIENT_NAMES, map(off, self.operands.inputs), strict=True)))
        right = (self.output, self.gradients)
        return _rounded(self.problem, inputs, self.rows, self.routing, right)


def only_on(rows: Tensor, operands: Operands) -> Operands:
    """The same operands with an upstream gradient that is zero outside ``rows``: gradients then cost O(rows · Nk)."""
    upstream = torch.zeros_like(operands.upstream)
    rows = rows.to(upstream.device)
    upstream[:, :, rows] = operands.upstream[:, :, rows]
    return replace(operands, upstream=upstream)


def truth(problem: Problem, operands: Operands, rows: Tensor) -> Truth:
    """What is right on ``rows``; with gradients, for the upstream gradient on these rows, where the mode has them."""
    routing = problem.route(operands)
    differentiates = problem.workload.mode != "fwd"
    output, gradients = _evaluate(problem, operands, rows, routing, torch.float64, differentiates=differentiates)
    right = (output, gradients)
    rounded, rounded_gradients = _rounded(problem, operands, rows, routing, right)
    return Truth(rows, output, rounded, gradients, rounded_gradients, operands, routing, problem)


def untrue(truth: Truth) -> str | None:
    """Why nothing can be held against this: the formula itself gives NaN or infinity, or does in the working dtype."""
    fine, coarse = "float64", truth.problem.workload.dtype
    for dtype, output, gradients in (
        (fine, truth.output, truth.gradients),
        (coarse, truth.rounded, truth.rounded_gradients),
    ):
        named = {"output": output}
        named |= {f"gradient of {name}": each for name, each in zip(_GRADIENT_NAMES, gradients or (), strict=False)}
        for name, tensor in named.items():
            count = int((~torch.isfinite(tensor)).sum())
            if count:
                return (
                    f"the variant's reference is not finite: {count} of {tensor.numel()} numbers of its {name} "
                    f"in {dtype} are NaN or infinite, so nothing can be checked against it"
                )
    return None


def judge_output(truth: Truth, output: Tensor) -> Agreement:
    """The row of an output, ``(B, H, Nq, Dv)``, that is worst against its tolerance."""
    explained = _by_row(truth.rounded - truth.output)
    agreement = _judge_rows(truth, output, explained)
    if agreement.holds:
        return agreement
    shaken = [_by_row(moved - truth.output) for moved, _ in truth.shaken]
    return _judge_rows(truth, output, torch.stack([explained, *shaken]).amax(dim=0))


def judge_gradients(truth: Truth, gradients: tuple[Tensor | None, ...]) -> Agreement:
    """The gradient that is worst against its tolerance. None counts as zero."""
    agreements = [_judge_gradient(truth, index, given) for index, given in enumerate(gradients)]
    return max(agreements, key=lambda agreement: agreement.error / agreement.tolerance)


def _judge_rows(truth: Truth, output: Tensor, explained: Tensor) -> Agreement:
    """``explained``: errors by row that the formula makes as well."""
    working = output.dtype
    error = _by_row(output[:, :, truth.rows.to(output.device)].double() - truth.output)
    scale = max(_largest(truth.operands.value), _largest(truth.output))  # a projection can lengthen values
    floor = _ROUNDINGS * _accumulation_epsilon(working) * scale
    tolerance = (_NAIVE_ERRORS * _over_neighbours(explained)).clamp(min=floor)
    if _is_half(working):
        tolerance = torch.maximum(tolerance, _RESULT_ROUNDINGS * torch.finfo(working).eps * _by_row(truth.output))
    worst = int((error / tolerance).argmax())
    return Agreement(float(error[worst]), float(tolerance[worst]), f"query row {int(truth.rows[worst])}")


def _judge_gradient(truth: Truth, index: int, given: Tensor | None) -> Agreement:
    right = _gradient(truth.gradients, index)
    wrong = _largest(right if given is None else given.double() - right)
    floor = max(_gradient_floor(truth, _largest(right)), torch.finfo(torch.float64).tiny)
    tolerance = max(_NAIVE_ERRORS * _largest(_gradient(truth.rounded_gradients, index).double() - right), floor)
    if wrong > tolerance:
        shaken = (_largest(_gradient(moved, index) - right) for _, moved in truth.shaken)
        tolerance = max(tolerance, _NAIVE_ERRORS * max(shaken))
    return Agreement(wrong, tolerance, f"the gradient of {_GRADIENT_NAMES[index]}")


def _gradient(gradients: tuple[Tensor, ...] | None, index: int) -> Tensor:
    assert gradients is not None  # noqa: S101  # asked for by the mode
    return gradients[index]


def _gradient_floor(truth: Truth, largest: float) -> float:
    """What rounding explains of a gradient whose largest number is ``largest``, however well the formula itself rounds.

    A gradient of query or key sums up terms p · (dP − δ) · k. They cancel where a row sees few keys, but the errors
    that a kernel makes by taking δ from its rounded output, about ε · |dO| · |O|, do not.
    """
    working = truth.operands.query.dtype
    query, key, value, upstream = (_largest(tensor) for tensor in (*truth.operands.inputs, truth.operands.upstream))
    heads_of_a_key = truth.operands.query.shape[1] // truth.operands.key.shape[1]  # its gradient sums over them
    terms = upstream * value * max(query, key) * heads_of_a_key
    fine, coarse = _accumulation_epsilon(working), torch.finfo(working).eps
    if not _is_half(working):
        return fine * max(_ROUNDINGS * largest, terms)
    cancelled = terms * (_largest(truth.output) / value) ** 2 / 8 if value else 0.0
    return max(fine * _ROUNDINGS * largest, coarse * max(_RESULT_ROUNDINGS * largest, cancelled))


def _evaluate(
    problem: Problem, operands: Operands, rows: Tensor, routing: Any, dtype: torch.dtype, *, differentiates: bool
) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    inputs = tuple(tensor.detach().to(dtype).requires_grad_(differentiates) for tensor in operands.inputs)
    with torch.set_grad_enabled(differentiates):
        output = problem.reference(inputs, rows=rows, routing=routing)
    if not differentiates:
        return output, None
    upstream = operands.upstream[:, :, rows.to(operands.upstream.device)].to(dtype)
    gradients = torch.autograd.grad(output, inputs, upstream, allow_unused=True)
    return output.detach(), tuple(
        _or_zeros(gradient, tensor) for gradient, tensor in zip(gradients, inputs, strict=True)
    )


def _rounded(problem: Problem, operands: Operands, rows: Tensor, routing: Any, right: _Evaluated) -> _Evaluated:
    """The formula in the working dtype. Of float64 nothing is more exact: as in float32, in proportion to ε."""
    working = getattr(torch, problem.workload.dtype)
    differentiates = right[1] is not None
    output, gradients = _evaluate(problem, operands, rows, routing, _coarse(working), differentiates=differentiates)
    if working == torch.float64:
        output = _as_in_float64(right[0], output)
        gradients = gradients and tuple(map(_as_in_float64, right[1] or (), gradients))
    return output.double(), gradients


def _coarse(working: torch.dtype) -> torch.dtype:
    return torch.float32 if working == torch.float64 else working


def _over_neighbours(errors: Tensor) -> Tensor:
    """The largest error within two sampled rows: a row of few numbers may round well by luck."""
    return torch.nn.functional.max_pool1d(errors[None], 2 * _NEIGHBOURS + 1, stride=1, padding=_NEIGHBOURS)[0]


def _as_in_float64(right: Tensor, in_float32: Tensor) -> Tensor:
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    return right + (in_float32.double() - right) * ratio


def _or_zeros(gradient: Tensor | None, tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if gradient is None else gradient


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max())


def _by_row(tensor: Tensor) -> Tensor:
    """Largest magnitude in each row of ``(B, H, R, D)``."""
    return tensor.detach().abs().amax(dim=(0, 1, 3))


def _is_half(dtype: torch.dtype) -> bool:
    return torch.finfo(dtype).bits < 32  # noqa: PLR2004  # bits of a float32


def _accumulation_epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(torch.float32 if _is_half(dtype) else dtype).eps
