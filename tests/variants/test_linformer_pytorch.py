"""The package against our own, and what is wrong in it: if one of the latter fails, the package got better."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from tests.variants import parametrised
from tests.variants.parametrised import operands, run
from variants import linformer, linformer_pytorch
from variants._contract import Workload
from variants._linformer import Parameters

VARIANT = linformer_pytorch.VARIANT
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=100, key_length=100, head_dim=8, mode="fwd_bwd")
KINDS = [
    Parameters(rank=12),
    Parameters(rank=12, projection="random", sharing="headwise"),
    Parameters(rank=12, projection="learned", sharing="none"),
    Parameters(rank=120, projection="learned"),
]
installed = pytest.mark.skipif(
    importlib.util.find_spec("linformer_pytorch") is None, reason="linformer-pytorch is not installed"
)


@installed
@pytest.mark.parametrize("parameters", KINDS, ids=str)
@pytest.mark.parametrize(
    "workload",
    [
        BASE,
        replace(BASE, mask="padding:0.5"),
        replace(BASE, dtype="bfloat16", kv_heads=4, mask="padding:0.5"),
        replace(BASE, dtype="float16", key_length=40, value_head_dim=5, scale=0.3),
        replace(BASE, query_length=1, key_length=1),
    ],
)
def test_it_computes_its_formula(workload, parameters):
    parametrised.check(VARIANT, workload, parameters)


@installed
@pytest.mark.parametrize("mask", ["full", "padding:0.5"])
@pytest.mark.parametrize("parameters", KINDS[1:], ids=str)
def test_it_gives_what_ours_gives(mask, parameters):
    workload = replace(BASE, mask=mask, dtype="float64")
    given = operands(workload)
    ours, theirs = (run(variant, workload, parameters, given) for variant in (linformer.VARIANT, VARIANT))
    torch.testing.assert_close(theirs.output, ours.output)
    for first, second in zip(theirs.gradients, ours.gradients, strict=True):
        torch.testing.assert_close(first, second)


@installed
def test_pooling_agrees_without_padding_and_differs_with_it():
    full, padded = BASE, replace(BASE, mask="padding:0.5")
    for workload, agrees in ((full, True), (padded, False)):
        given = operands(workload)
        ours, theirs = (run(one, workload, KINDS[0], given).output for one in (linformer.VARIANT, VARIANT))
        assert torch.allclose(ours, theirs, atol=1e-5) == agrees


@installed
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_padded_keys_of_the_caller_stay_as_they_are(kv_heads):
    workload = replace(BASE, mask="padding:0.5", kv_heads=kv_heads)
    given = operands(workload)
    before = [tensor.detach().clone() for tensor in given.inputs]
    run(VARIANT, workload, KINDS[1], given)
    for tensor, original in zip(given.inputs, before, strict=True):
        assert torch.equal(tensor, original)


@installed
def test_building_draws_nothing_from_the_global_generator():
    state = torch.get_rng_state()
    VARIANT.build(BASE, KINDS[2])
    assert torch.equal(torch.get_rng_state(), state)


@installed
def test_flops_are_those_of_dense_products_for_every_query_head():
    attention, projection = 4 * 4 * 2 * 100 * 12 * 8, 4 * 4 * 2 * 100 * 12 * 8
    assert linformer_pytorch.flops(replace(BASE, mode="fwd"), KINDS[0]) == attention + projection
    assert linformer_pytorch.flops(replace(BASE, mode="bwd"), KINDS[0]) == 2 * attention + projection
    learned = replace(KINDS[0], projection="learned")
    assert linformer_pytorch.flops(replace(BASE, mode="bwd"), learned) == 2 * attention + 2 * projection


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (reason,) = VARIANT.obstacles(BASE, Parameters())
    assert "pip install 'attention-bench[packages]'" in reason


@pytest.mark.parametrize(("changes", "count"), [({"scale": -1.0}, 1), ({"scale": 0.3, "dtype": "float64"}, 1), ({}, 0)])
@installed
def test_scales_that_it_cannot_be_told(changes, count):
    assert len(VARIANT.obstacles(replace(BASE, **changes), Parameters())) == count


# --- what is wrong in the package ---------------------------------------------------------------------------------


def head(*, length=32, rank=8, causal=False, method="learnable"):
    from linformer_pytorch.linformer_pytorch import LinearAttentionHead, gen_causal_mask, get_EF

    torch.manual_seed(0)
    projection = get_EF(length, rank, method)
    return LinearAttentionHead(16, 0.0, projection, projection, gen_causal_mask(length, rank) if causal else None)


def inputs(length=32):
    return [torch.randn(2, length, 16) for _ in range(3)]


@installed
def test_its_causal_mode_leaks():
    attend, (query, key, value) = head(causal=True), inputs()
    before = attend(query, key, value)
    key[:, 20:], value[:, 20:] = 5.0, 5.0
    assert not torch.allclose(attend(query, key, value)[:, :20], before[:, :20])


@installed
def test_it_overwrites_what_it_masks():
    query, key, value = inputs()
    mask = torch.arange(32)[None] < torch.tensor([[10], [32]])
    head()(query, key, value, input_mask=mask)
    assert not key[0, 10:].any()
    assert not value[0, 10:].any()


@installed
def test_it_takes_one_length_only():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        head()(*inputs(31))


@installed
def test_without_parameters_it_takes_float32_only_and_is_not_saved():
    attend = head(method="no_params")
    assert not attend.state_dict()
    with pytest.raises(RuntimeError, match="expected scalar type"):
        attend.double()(*(tensor.double() for tensor in inputs()))
