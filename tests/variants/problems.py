"""Workloads, their tensors, and a variant run on them: what the tests of variants share."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

import variants
from bench.measure import oracle
from bench.measure.call import Call, Operands
from bench.measure.inputs import make
from variants._contract import Workload
from variants._pattern import Pattern

VARIANTS = variants.find()


def small(**changes):
    """A workload with two batch items, grouped heads and a length that no block divides."""
    usual = {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "query_length": 100,
        "key_length": 100,
        "head_dim": 16,
        "mode": "fwd_bwd",
    }
    return Workload(**(usual | changes))


def square(length, **changes):
    return small(query_length=length, key_length=length, **changes)


def spelled(workload):
    """The unusual fields of a workload: an identifier that a person reads."""
    usual = small()
    fields = {name: getattr(workload, name) for name in workload.__slots__}
    if workload.is_square:
        fields |= {"length": fields.pop("query_length")}
        del fields["key_length"]
        usual_fields = {"length": 100} | {name: getattr(usual, name) for name in usual.__slots__}
    else:
        usual_fields = {name: getattr(usual, name) for name in usual.__slots__} | {"query_length": 0, "key_length": 0}
    return ",".join(f"{name}={value}" for name, value in fields.items() if value != usual_fields[name]) or "usual"


def compiles(name):
    """Whether a build takes seconds."""
    return any(
        "CompiledFxGraph" in pattern for kernels in VARIANTS[name].kernels.values() for pattern in kernels.required
    )


def refusals(name, workload):
    variant = VARIANTS[name]
    return list(variant.obstacles(workload, variant.parameters()))


def forward_only(workload):
    return replace(workload, mode="fwd")


def operands(workload):
    return Operands(*make(workload)).fresh(differentiable=False)


@lru_cache(maxsize=256)
def built(name, workload):
    variant = VARIANTS[name]
    return variant.build(workload, variant.parameters())


def run(name, workload, given=None):
    """Output, and gradients where the mode has them, on ``given`` operands or the workload's own."""
    given = (given or operands(workload)).fresh(differentiable=workload.mode != "fwd")
    return Call(built(name, workload), given, workload.mode).whole()


def truth(name, workload, given=None):
    """The variant's own formula on every row, in float64, and in the working dtype for its rounding."""
    variant = VARIANTS[name]
    problem = oracle.Problem(variant, workload, variant.parameters())
    given = given or operands(workload)
    return oracle.truth(problem, given, torch.arange(workload.query_length))


def check_against_own_formula(name, workload):
    right, result = truth(name, workload), run(name, workload)
    agreements = [oracle.judge_output(right, result.output)]
    if result.gradients is not None:
        agreements.append(oracle.judge_gradients(right, result.gradients))
    for agreement in agreements:
        assert agreement.holds, str(agreement)
    return result


def changed(given, **where):
    """Operands with the named tensors overwritten at the given index by other, larger values."""
    generator = torch.Generator().manual_seed(1)
    tensors = {name: getattr(given, name).clone() for name in ("query", "key", "value", "upstream")}
    for name, index in where.items():
        part = tensors[name][index]
        tensors[name][index] = (30 * torch.randn(part.shape, generator=generator)).to(part.dtype)
    return Operands(**tensors)


def empty_rows(workload):
    """Which rows may see nothing, ``(B or 1, 1, Nq)``."""
    return ~Pattern.of(workload, "cpu").dense()[0].any(dim=-1)
