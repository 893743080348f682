"""A variant with parameters of its own choice, held against its formula, and what else tests of one variant need."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from bench.measure import oracle
from bench.measure.call import Call, Operands
from bench.measure.inputs import make
from bench.measure.memory import weigh_cpu
from variants._reference import exact


def operands(workload):
    return Operands(*make(workload)).fresh(differentiable=workload.mode != "fwd")


def run(variant, workload, parameters, given=None):
    assert list(variant.obstacles(workload, parameters)) == []
    attend = variant.build(workload, parameters)
    return Call(attend, given or operands(workload), workload.mode).whole()


def check(variant, workload, parameters):
    """Output and gradients against the variant's formula on every row, as the oracle judges."""
    given = operands(workload)
    result = run(variant, workload, parameters, given)
    rows = torch.arange(workload.query_length)
    right = oracle.truth(oracle.Problem(variant, workload, parameters), given, rows)
    agreements = [oracle.judge_output(right, result.output)]
    if result.gradients is not None:
        agreements.append(oracle.judge_gradients(right, result.gradients))
    for agreement in agreements:
        assert agreement.holds, str(agreement)


def exactly(workload, given):
    """Exact attention under the workload's own mask, for every row, in float64."""
    inputs = (tensor.detach().double() for tensor in given.inputs)
    return exact(*inputs, workload=workload, rows=torch.arange(workload.query_length))


def relative_error(variant, workload, parameters):
    """‖output − exact‖ / ‖exact‖."""
    given = operands(workload)
    right = exactly(workload, given)
    return float((run(variant, workload, parameters, given).output.double() - right).norm() / right.norm())


def strided(given):
    """The same values in tensors whose heads lie within positions: ``(B, N, H, D)`` seen as ``(B, H, N, D)``."""
    tensors = (tensor.detach().transpose(1, 2).contiguous().transpose(1, 2) for tensor in given.inputs)
    return Operands(*(tensor.requires_grad_(given.query.requires_grad) for tensor in tensors), given.upstream)


def poisoned(given, kept):
    """The same operands with NaN for content in every padded key and value."""
    key, value = given.key.detach().clone(), given.value.detach().clone()
    for item, count in enumerate(kept):
        key[item, :, count:] = value[item, :, count:] = torch.nan
    differentiable = given.query.requires_grad
    return Operands(
        given.query, key.requires_grad_(differentiable), value.requires_grad_(differentiable), given.upstream
    )


def peak_bytes(variant, workload, parameters):
    call = Call(variant.build(workload, parameters), operands(workload), workload.mode)
    return weigh_cpu(call).weight.peak_bytes


def memory_exponent(variant, workload, parameters, lengths):
    """The slope of log peak over log length, least squares."""
    points = [
        (math.log(length), math.log(peak_bytes(variant, square(workload, length), parameters))) for length in lengths
    ]
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def square(workload, length):
    return replace(workload, query_length=length, key_length=length)
