"""The package against our own, and what is wrong in it: if one of the latter fails, the package got better."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from bench.measure import oracle
from tests.variants import parametrised
from tests.variants.parametrised import operands, run, square
from variants import performer, performer_pytorch
from variants._contract import Workload
from variants._performer import Parameters

VARIANT = performer_pytorch.VARIANT
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=150, key_length=150, head_dim=8, mode="fwd_bwd")
CAUSAL = replace(BASE, mask="causal")
installed = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("performer_pytorch", "distutils"))),
    reason="performer-pytorch is not installed",
)


@installed
@pytest.mark.parametrize("parameters", [Parameters(), Parameters(5)], ids=str)
@pytest.mark.parametrize(
    "workload",
    [
        BASE,
        CAUSAL,
        replace(BASE, dtype="float64"),
        replace(BASE, dtype="bfloat16"),
        replace(BASE, key_length=40, value_head_dim=5),
        square(CAUSAL, 1),
    ],
)
def test_it_computes_its_formula(workload, parameters):
    parametrised.check(VARIANT, workload, parameters)


@installed
@pytest.mark.parametrize("workload", [BASE, CAUSAL])
def test_it_is_nearly_ours(workload):
    workload = replace(workload, mode="fwd", dtype="float64")
    given = operands(workload)
    ours, theirs = (run(variant, workload, Parameters(), given).output for variant in (performer.VARIANT, VARIANT))
    difference = float((theirs - ours).norm() / ours.norm())
    assert 1e-6 < difference < 0.1  # its ε is the difference


@installed
def test_building_draws_nothing_and_says_nothing(capsys):
    state = torch.get_rng_state()
    VARIANT.build(CAUSAL, Parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert capsys.readouterr() == ("", "")


@installed
def test_flops():
    one = replace(BASE, mode="fwd", value_head_dim=5)
    rows = 2 * 4 * 300
    assert performer_pytorch.flops(one, Parameters(20)) == 2 * rows * 20 * (8 + 5) + rows * 20
    assert (
        performer_pytorch.flops(replace(one, mode="bwd"), Parameters(20)) == 2 * rows * 20 * (8 + 2 * 5) + 2 * rows * 20
    )


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (reason,) = VARIANT.obstacles(BASE, Parameters())
    assert "pip install 'attention-bench[packages]'" in reason


@installed
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mask": "padding:0.5"}, "takes no mask"),
        ({"mask": "window:9"}, "one state"),
        ({"mask": "causal", "key_length": 200}, "equal"),
        ({"scale": 0.3}, "0.3"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16", "mask": "causal"}, "bfloat16"),
    ],
)
def test_what_it_refuses(changes, word):
    (reason,) = VARIANT.obstacles(replace(BASE, **changes), Parameters())
    assert word in reason


# --- what is wrong in the package ---------------------------------------------------------------------------------


@installed
def test_its_causal_mode_leaks():
    workload = replace(CAUSAL, mode="fwd")
    given = operands(workload)
    before = run(VARIANT, workload, Parameters(), given).output
    late = replace(given, key=given.key.clone())
    late.key[:, :, 100:] *= 4
    after = run(VARIANT, workload, Parameters(), late).output
    assert (after[:, :, :100] - before[:, :, :100]).abs().max() > 1e-3
    ours = [run(performer.VARIANT, workload, Parameters(), some).output[:, :, :100] for some in (given, late)]
    torch.testing.assert_close(*ours)


@installed
def test_what_it_adds_to_features_outweighs_those_of_long_keys():
    workload = replace(BASE, mode="fwd")
    given = operands(workload)
    long = replace(given, key=6 * given.key)
    errors = []
    for variant in (VARIANT, performer.VARIANT):
        output = run(variant, workload, Parameters(), long).output.double()
        right = performer.VARIANT.reference(
            *(tensor.double() for tensor in long.inputs),
            workload=workload,
            parameters=Parameters(),
            rows=torch.arange(150),
        )
        errors.append(float((output - right).norm() / right.norm()))
    assert errors[0] > 0.1
    assert errors[1] < 1e-3


@installed
def test_float16_gives_infinities():
    workload = replace(CAUSAL, mode="fwd", dtype="float16")
    given = operands(workload)
    assert not VARIANT.build(workload, Parameters())(*given.inputs).isfinite().all()


@installed
def test_causal_sums_in_bfloat16_round_more_than_the_formula():
    workload = replace(square(CAUSAL, 1000), mode="fwd", dtype="bfloat16", head_dim=64, heads=2, kv_heads=1, batch=1)
    given, rows = operands(workload), torch.arange(1000)
    attend = VARIANT.build(workload, Parameters())
    right = oracle.truth(oracle.Problem(VARIANT, workload, Parameters()), given, rows)
    assert not oracle.judge_output(right, attend(*given.inputs)).holds
