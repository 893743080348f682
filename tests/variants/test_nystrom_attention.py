"""The package against our own, and what is wrong in it: if one of the latter fails, the package got better."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from tests.variants import parametrised
from tests.variants.parametrised import operands, run, square
from variants import nystrom, nystrom_attention
from variants._contract import Workload
from variants._nystrom import Parameters

VARIANT = nystrom_attention.VARIANT
ONE = Workload(batch=1, heads=1, kv_heads=1, query_length=96, key_length=96, head_dim=8, mode="fwd_bwd")
MANY = replace(ONE, batch=2, heads=4, kv_heads=2)
FEW = Parameters(landmarks=12)
installed = pytest.mark.skipif(
    importlib.util.find_spec("nystrom_attention") is None, reason="nystrom-attention is not installed"
)


@installed
@pytest.mark.parametrize("mask", ["full", "padding:0.5", "padding:0.1"])
@pytest.mark.parametrize("parameters", [FEW, Parameters(), Parameters(7, 2)], ids=str)
@pytest.mark.parametrize(
    "workload", [MANY, replace(MANY, dtype="float64", scale=0.3), square(MANY, 1), square(MANY, 101)]
)
def test_it_computes_its_formula(workload, parameters, mask):
    parametrised.check(VARIANT, replace(workload, mask=mask), parameters)


@installed
def test_a_single_head_of_a_length_that_landmarks_divide_is_ours():
    workload = replace(ONE, dtype="float64")
    given = operands(workload)
    ours, theirs = (run(variant, workload, FEW, given) for variant in (nystrom.VARIANT, VARIANT))
    torch.testing.assert_close(theirs.output, ours.output)
    for first, second in zip(theirs.gradients, ours.gradients, strict=True):
        torch.testing.assert_close(first, second)


@installed
def test_building_draws_nothing_from_the_global_generator():
    state = torch.get_rng_state()
    VARIANT.build(MANY, FEW)
    assert torch.equal(torch.get_rng_state(), state)


@installed
def test_flops():
    forward = 2 * 8 * ((2 * 96 * 12 + 144) * 8 + 96 * 144 + 2 * 96 * 12 * 8 + 24 * 12**3)
    assert nystrom_attention.flops(replace(MANY, mode="fwd"), FEW) == forward
    assert nystrom_attention.flops(replace(square(MANY, 85), mode="bwd"), FEW) == 2 * forward


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (reason,) = VARIANT.obstacles(ONE, FEW)
    assert "pip install 'attention-bench[packages]'" in reason


@installed
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mask": "causal"}, "not causal"),
        ({"key_length": 40}, "equal"),
        ({"value_head_dim": 5}, "as wide"),
        ({"dtype": "bfloat16"}, "bfloat16"),
    ],
)
def test_what_it_refuses(changes, word):
    (reason,) = VARIANT.obstacles(replace(ONE, **changes), FEW)
    assert word in reason


# --- what is wrong in the package ---------------------------------------------------------------------------------


@installed
def test_items_of_a_batch_change_each_other():
    given = operands(MANY)
    before = run(VARIANT, MANY, FEW, given).output
    query = given.query.detach().clone()
    query[1] *= 9
    after = run(VARIANT, MANY, FEW, replace(given, query=query.requires_grad_())).output
    assert (after[0] - before[0]).abs().max() > 0.01


@installed
@pytest.mark.parametrize(("length", "agrees"), [(96, True), (97, False)])
def test_zeros_in_front_are_keys_unless_there_is_a_mask(length, agrees):
    from nystrom_attention import NystromAttention

    torch.manual_seed(0)
    module, x = NystromAttention(dim=8, dim_head=8, heads=1, num_landmarks=12), torch.randn(1, length, 8)
    masked = module(x, mask=torch.ones(1, length, dtype=torch.bool))
    assert torch.allclose(module(x), masked, atol=1e-3) == agrees


@installed
def test_half_precision_fails():
    from nystrom_attention import NystromAttention

    module = NystromAttention(dim=8, dim_head=8, heads=1, num_landmarks=4).bfloat16()
    with pytest.raises(RuntimeError, match="BFloat16 but found Float"):
        module(torch.randn(1, 16, 8, dtype=torch.bfloat16))
