"""Burdened variants really do more, exactly where they should, and give what the plain ones give."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.ab import burden
from bench.ab.burden import VARIABLE, Burden, burdened
from bench.measure.call import Call, Operands
from bench.measure.memory import weigh_cpu
from bench.sweep import engine
from variants._contract import Workload

ROWS = 200
VARIANTS = ("naive_sdpa", "sdpa_math", "sdpa_flash")


def workload(mode="fwd", length=ROWS):
    return Workload(heads=2, kv_heads=2, query_length=length, key_length=length, head_dim=16, mode=mode)


def call(name, problem, what=None):
    variant = engine.variant(name) if what is None else burdened(engine.variant(name), what)
    base = Operands.of(problem)
    return Call(
        variant.build(problem, variant.parameters()), base.fresh(differentiable=problem.mode != "fwd"), problem.mode
    )


def flops(one, *, backward_alone=False):
    with torch.set_grad_enabled(one.differentiates):
        prepared = one.forward() if backward_alone else None
        with FlopCounterMode(display=False) as counted:
            one.backward(prepared) if backward_alone else one.whole()
    return counted.get_total_flops()


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_result_is_that_of_the_plain_variant(name, mode):
    plain = call(name, workload(mode)).whole()
    heavy = call(name, workload(mode), Burden(share=0.1)).whole()
    torch.testing.assert_close(heavy.output, plain.output, rtol=0, atol=0)
    for one, other in zip(heavy.gradients or (), plain.gradients or (), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("share", [0.03, 0.05, 0.10])
def test_so_much_more_is_computed(mode, share):
    alone = mode == "bwd"
    plain = flops(call("naive_sdpa", workload(mode)), backward_alone=alone)
    heavy = flops(call("naive_sdpa", workload(mode), Burden(share=share)), backward_alone=alone)
    assert heavy / plain - 1 == pytest.approx(share, rel=0.03)  # a square of whole rows


@pytest.mark.parametrize(
    ("mode", "length", "weighed"), [("bwd", ROWS, True), ("fwd", ROWS, False), ("bwd", 100, False)]
)
def test_only_where_it_should(mode, length, weighed):
    what = Burden(share=0.1, modes=("bwd",), lengths=(ROWS,))
    plain, heavy = (flops(call("naive_sdpa", workload(mode, length), chosen)) for chosen in (None, what))
    assert (heavy > plain) == weighed


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("variant", ["naive_sdpa", "sdpa_flash"])
def test_ballast_weighs_and_computes_nothing(variant, mode):
    plain, heavy = (call(variant, workload(mode), chosen) for chosen in (None, Burden(ballast=0.05)))
    assert flops(heavy) == flops(plain)
    assert weigh_cpu(heavy).weight.peak_bytes > weigh_cpu(plain).weight.peak_bytes


def test_the_environment_says_which(monkeypatch):
    what = Burden(share=0.1, lengths=(ROWS,))
    ((name, text),) = what.environment().items()
    assert json.loads(text)["share"] == 0.1
    monkeypatch.setenv(name, text)
    heavy = burden.variant("naive_sdpa")
    assert name == VARIABLE
    assert heavy.name == "naive_sdpa"
    attend = heavy.build(workload(), heavy.parameters())
    operands = Operands.of(workload())
    assert flops(Call(attend, operands, "fwd")) > flops(call("naive_sdpa", workload()))
