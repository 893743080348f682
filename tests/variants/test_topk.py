"""Top-k attention: exact on its keys, exact altogether with all keys, and a bound for whoever keeps as many."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.variants import parametrised
from tests.variants.problems import operands, run, small, square
from variants import hard
from variants._pattern import Pattern
from variants._reference import expand_heads, pattern_weights
from variants.topk import VARIANT, Parameters, route


def weights_of(workload, given):
    """Exact weights ``(B, H, Nq, Nk)`` in float64."""
    key = expand_heads(given.key.double(), workload)
    rows = torch.arange(workload.query_length)
    return pattern_weights(given.query.double(), key, pattern=Pattern.of(workload, "cpu"), rows=rows)


@pytest.mark.parametrize("mask", ["full", "causal", "band:9+padding:0.5", "softcap:2+alibi", "bigbird:16x2x1"])
@pytest.mark.parametrize("k", [100, 1000])
def test_with_all_keys_it_is_exact_attention(mask, k):
    workload = small(mask=mask)
    first, second = parametrised.run(VARIANT, workload, Parameters(k=k)), run("naive_sdpa", workload)
    torch.testing.assert_close(first.output, second.output, rtol=1e-4, atol=1e-5)
    for one, other in zip(first.gradients, second.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", ["full", "causal+padding:0.6", "softcap:2+alibi+causal"])
@pytest.mark.parametrize("k", [1, 7])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_few_keys(mask, k, dtype):
    parametrised.check(VARIANT, square(300, mask=mask, dtype=dtype, heads=2, kv_heads=1), Parameters(k=k))


@pytest.mark.parametrize("mask", ["full", "causal", "alibi", "softcap:2"])
def test_it_keeps_the_largest_of_the_exact_weights(mask):
    workload = small(mask=mask, dtype="float64", mode="fwd")
    given = operands(workload)
    weights = weights_of(workload, given)
    kept = weights * (weights >= weights.sort(dim=-1, descending=True)[0][..., 9:10])
    right = kept / kept.sum(dim=-1, keepdim=True) @ expand_heads(given.value, workload)
    torch.testing.assert_close(parametrised.run(VARIANT, workload, Parameters(k=10)).output, right)


def test_one_key_is_hard_attention():
    workload = small(mask="causal+padding:0.6", mode="fwd_bwd")
    result = parametrised.run(VARIANT, workload, Parameters(k=1))
    torch.testing.assert_close(result.output, run("hard", workload).output)
    torch.testing.assert_close(result.gradients[2], run("hard", workload).gradients[2])
    assert not result.gradients[0].any()
    given = operands(workload)
    (keys,) = route(given.query, given.key, workload=workload, parameters=Parameters(k=1)).unbind(-1)
    choices = hard.route(given.query, given.key, workload=workload, parameters=None)
    assert torch.equal(keys[choices >= 0], choices[choices >= 0])


def test_it_comes_nearer_with_every_key_on_average():
    def error(k):
        return sum(
            parametrised.relative_error(VARIANT, square(256, mode="fwd", seed=s), Parameters(k)) for s in range(3)
        )

    errors = [error(k) for k in (4, 16, 64, 128, 256)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1
    assert errors[-1] < 1e-5


def test_no_other_choice_of_as_many_keys_holds_more_mass():
    workload = square(128, mode="fwd", dtype="float64")
    given = operands(workload)
    weights = weights_of(workload, given)
    parameters = Parameters(k=48)
    mass = weights.gather(-1, route(given.query, given.key, workload=workload, parameters=parameters)).sum(-1)
    bigbird = Pattern.of(replace(workload, mask="bigbird:8x2x1"), "cpu").dense()[0]  # six blocks of eight at most
    inner = bigbird.sum(dim=-1) <= 48
    assert inner.any()
    others = (weights * bigbird).sum(dim=-1)
    assert (mass >= others)[inner.expand_as(mass)].all()
    assert mass.mean() > 1.5 * others[inner.expand_as(mass)].mean()


@pytest.mark.parametrize(("dtype", "share"), [("float32", 0.001), ("bfloat16", 0.01)])
def test_rounding_seldom_changes_the_keys(dtype, share):
    workload = square(300, dtype=dtype, mode="fwd")
    given = operands(workload)
    here = route(given.query, given.key, workload=workload, parameters=Parameters(16))
    fine = replace(workload, dtype="float64")
    right = route(given.query.double(), given.key.double(), workload=fine, parameters=Parameters(16))
    assert here.shape == (2, 4, 300, 16)
    assert (here.sort()[0] != right.sort()[0]).any(dim=-1).double().mean() <= share


def test_the_content_of_padding_is_never_read():
    workload = small(mask="padding:0.5")
    given = parametrised.operands(workload)
    kept = Pattern.of(workload, "cpu").kept.tolist()
    first = parametrised.run(VARIANT, workload, Parameters(7), given)
    key, value = given.key.detach().clone(), given.value.detach().clone()
    for item, count in enumerate(kept):
        key[item, :, count:] = torch.nan
        value[item, :, count:] = 1e4
    poisoned = replace(given, key=key.requires_grad_(), value=value.requires_grad_())
    second = parametrised.run(VARIANT, workload, Parameters(7), poisoned)
    assert torch.equal(first.output, second.output)


def test_training_memory_is_linear():
    workload = small(batch=1, heads=2, kv_heads=1)
    assert parametrised.memory_exponent(VARIANT, workload, Parameters(16), (1024, 2048)) < 1.3


def test_less_than_one_key_is_refused():
    assert VARIANT.obstacles(small(), Parameters(k=0)) == ["k must be at least 1, got 0"]
