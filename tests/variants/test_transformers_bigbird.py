"""The core of the package against its formula, and what is wrong in it; if the latter fails, the package got better."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from bench.measure.call import Call
from tests.variants import parametrised
from tests.variants.parametrised import operands, run, square
from variants import bigbird, transformers_bigbird
from variants._bigbird import Parameters as Blocks
from variants._contract import Workload
from variants.transformers_bigbird import Parameters, random_blocks, times_seen

VARIANT = transformers_bigbird.VARIANT
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=160, key_length=160, head_dim=8, mode="fwd_bwd")
SMALL = Parameters(block=8, random_blocks=2)
EVALUATION = replace(SMALL, training=False)
installed = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")


@installed
@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({}, SMALL),
        ({}, EVALUATION),
        ({"query_length": 157, "key_length": 157}, SMALL),
        ({"mask": "padding:0.5"}, SMALL),
        ({"mask": "padding:0.1", "query_length": 75, "key_length": 75}, EVALUATION),
        ({"value_head_dim": 5, "scale": 0.3, "dtype": "float64"}, SMALL),
        ({"kv_heads": 4, "dtype": "bfloat16"}, SMALL),
        ({"seed": 3, "dtype": "float16"}, Parameters(block=4, random_blocks=1)),
        ({"query_length": 1024, "key_length": 1024, "batch": 1, "heads": 2, "mode": "fwd"}, Parameters()),
    ],
    ids=str,
)
def test_it_computes_its_formula(changes, parameters):
    parametrised.check(VARIANT, replace(BASE, **changes), parameters)


@installed
def test_every_block_of_rows_sees_its_window_both_ends_and_so_many_random_blocks():
    times = times_seen(BASE, SMALL)
    count = 160 // 8
    assert times.shape == (4, count, count)
    assert (times[:, [0, -1]] == 1).all()
    assert (times[:, :, [0, -1]] >= 1).all()
    assert (times.diagonal(dim1=1, dim2=2) >= 1).all()
    inner = times[:, 2:-2].sum(dim=-1)
    assert (inner == 3 + 2 + SMALL.random_blocks).all()
    assert not torch.equal(times[0], times[1])  # heads draw apart
    assert not torch.equal(times, times_seen(replace(BASE, seed=1), SMALL))


@installed
def test_rows_that_see_everything_are_those_of_bigbird():
    given = operands(BASE)
    theirs, ours = run(VARIANT, BASE, SMALL, given), run(bigbird.VARIANT, BASE, Blocks(block=8), given)
    for ends in (slice(0, 8), slice(152, 160)):
        torch.testing.assert_close(theirs.output[:, :, ends], ours.output[:, :, ends])
    assert not torch.allclose(theirs.output, ours.output)


@installed
@pytest.mark.parametrize("parameters", [SMALL, EVALUATION], ids=str)
def test_padding_content_changes_nothing(parameters):
    workload = replace(BASE, mask="padding:0.5", mode="fwd")
    given = operands(workload)
    before = run(VARIANT, workload, parameters, given).output
    kept = transformers_bigbird.Pattern.of(workload).kept.tolist()
    key, value = given.key.clone(), given.value.clone()
    for item, count in enumerate(kept):
        key[item, :, count:] = value[item, :, count:] = 7
    torch.testing.assert_close(run(VARIANT, workload, parameters, replace(given, key=key, value=value)).output, before)


@installed
def test_flops_are_what_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    for workload in (replace(BASE, mode="fwd"), BASE, replace(square(BASE, 157), mode="fwd")):
        call = Call(VARIANT.build(workload, SMALL), operands(workload), workload.mode)
        with FlopCounterMode(display=False) as counter:
            call.whole()
        assert counter.get_total_flops() == pytest.approx(transformers_bigbird.flops(workload, SMALL), rel=0.01)


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (reason,) = VARIANT.obstacles(BASE, SMALL)
    assert "pip install 'attention-bench[packages]'" in reason


@installed
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mask": "causal"}, "both ways"),
        ({"mask": "bigbird:8x2x2"}, "pattern of its own"),
        ({"key_length": 168}, "equal"),
        ({"query_length": 72, "key_length": 72}, "full attention instead"),
        ({"scale": -1.0}, "root"),
    ],
)
def test_what_it_refuses(changes, word):
    (reason,) = VARIANT.obstacles(replace(BASE, **changes), SMALL)
    assert word in reason


def test_parameters_are_checked():
    with pytest.raises(ValueError, match="random_blocks must be at least 1, got 0"):
        Parameters(random_blocks=0)


# --- what is wrong in the package ---------------------------------------------------------------------------------


@installed
def test_in_evaluation_every_random_block_is_the_first():
    assert (random_blocks(BASE, EVALUATION) == 0).all()
    assert (times_seen(BASE, EVALUATION)[:, 2:-2, 0] == 1 + SMALL.random_blocks).all()


@installed
def test_at_1024_a_random_block_may_be_the_last_which_is_global():
    workload = square(BASE, 1024)
    counts = [(times_seen(replace(workload, seed=seed), Parameters())[:, 1:-1, -1] > 1).any() for seed in range(3)]
    assert any(counts)


@installed
def test_memory_is_quadratic():
    workload = replace(BASE, batch=1, heads=2, kv_heads=2, mode="fwd")
    parameters, exponents = Parameters(block=16, random_blocks=1), []
    for variant, own in ((VARIANT, parameters), (bigbird.VARIANT, Blocks(block=16, random_blocks=1))):
        exponents.append(parametrised.memory_exponent(variant, workload, own, (2048, 4096, 8192)))
    assert exponents[0] > 1.7
    assert exponents[1] < 1.1


@installed
def test_the_model_computes_full_attention_for_good_after_one_short_text():
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=256, block_size=4, num_random_blocks=1,
    )  # fmt: skip
    model = BigBirdModel(config).eval()
    assert model.attention_type == "block_sparse"
    with torch.no_grad():
        model(torch.ones(1, 28, dtype=torch.long))
        assert model.attention_type == "original_full"
        model(torch.ones(1, 64, dtype=torch.long))
    assert model.attention_type == "original_full"


@installed
def test_training_seeds_the_global_generator_of_numpy():
    import numpy as np

    workload = replace(BASE, mode="fwd")
    np.random.seed(0)  # noqa: NPY002  # this one it is about
    fresh = np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    run(VARIANT, workload, SMALL)
    assert np.random.random() != fresh  # noqa: NPY002
