"""Random features: unbiased, better by number and by being orthogonal, and never undone by orders of magnitude."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.measure.call import Operands
from tests.variants import parametrised
from tests.variants.parametrised import operands, run, square
from variants import _performer, performer
from variants._contract import Workload
from variants._pattern import Pattern
from variants._performer import Parameters

VARIANT = performer.VARIANT
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=150, key_length=150, head_dim=8, mode="fwd_bwd")


@st.composite
def cases(draw):
    group, kv_heads = draw(st.sampled_from((1, 3))), draw(st.integers(1, 2))
    query_length = draw(st.integers(2, 290))  # with one key gradients are nothing but rounding
    workload = Workload(
        batch=draw(st.integers(1, 2)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        query_length=query_length,
        key_length=draw(st.one_of(st.just(query_length), st.integers(2, 290))),
        head_dim=draw(st.sampled_from((1, 8))),
        value_head_dim=draw(st.sampled_from((None, 5))),
        scale=draw(st.sampled_from((None, 0.0, 0.5))),
        dtype=draw(st.sampled_from(("float32", "bfloat16", "float16"))),  # exponentials enlarge what float64 rounds
        mask=draw(st.sampled_from(("full", "causal", "padding:0.3", "causal+padding:0.3"))),
        mode=draw(st.sampled_from(("fwd", "fwd_bwd"))),
        seed=draw(st.integers(0, 3)),
    )
    return workload, Parameters(draw(st.sampled_from((None, 1, 30))))


@given(cases())
def test_it_computes_its_formula(case):
    parametrised.check(VARIANT, *case)


@pytest.mark.parametrize(("dim", "count"), [(64, 266), (80, 350), (8, 16), (2, 1), (1, 1)])
def test_as_many_features_as_the_paper_asks_for(dim, count):
    assert Parameters().count(replace(BASE, head_dim=dim)) == count
    assert len(_performer.directions(replace(BASE, head_dim=dim), Parameters())) == count


def test_directions_are_orthogonal_within_blocks_and_as_long_as_normal_ones():
    workload = replace(BASE, head_dim=16)
    drawn = _performer.directions(workload, Parameters(4000))
    block = drawn[16:32]
    products = block @ block.mT
    torch.testing.assert_close(products, products.diagonal().diag(), atol=1e-12, rtol=0)
    squares = drawn.square().sum(dim=1)
    assert float(squares.mean()) == pytest.approx(16, rel=0.03)  # chi squared of 16
    assert float(squares.var()) == pytest.approx(32, rel=0.15)
    torch.testing.assert_close(drawn.mT @ drawn / 4000, torch.eye(16, dtype=torch.float64), atol=0.06, rtol=0)


def test_other_seeds_draw_other_directions():
    first, second = (_performer.directions(replace(BASE, seed=seed), Parameters()) for seed in (0, 1))
    assert not torch.allclose(first, second)
    assert torch.equal(first, _performer.directions(BASE, Parameters()))


@pytest.mark.parametrize("scale", [0.25, 0.5])
def test_the_kernel_is_that_of_the_softmax(scale):
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(20, 8, generator=generator, dtype=torch.float64) / 2 for _ in range(2))
    weights = _performer.directions(BASE, Parameters(200_000))
    features = [_performer.logarithms(x, weights, scale).exp() for x in (query, key)]
    estimated = features[0] @ features[1].mT / len(weights)
    torch.testing.assert_close(estimated, (scale * query @ key.mT).exp(), rtol=0.05, atol=0)


def peaceful(seed):
    return replace(square(BASE, 300), mode="fwd", seed=seed, scale=0.05)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_more_features_are_nearer_to_exact(mask):
    errors = [
        sum(
            parametrised.relative_error(VARIANT, replace(peaceful(seed), mask=mask), Parameters(count))
            for seed in range(4)
        )
        for count in (8, 64, 512)
    ]
    assert errors[2] < 0.6 * errors[1] < 0.36 * errors[0]


def test_orthogonal_features_estimate_the_kernel_better_than_independent_ones():
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(20, 8, generator=generator, dtype=torch.float64) / 4 for _ in range(2))
    kernel = (query * key).sum(dim=1).exp()

    def mean_squared_error(draws):
        estimates = torch.stack(
            [
                (_performer.logarithms(query, weights, 1) + _performer.logarithms(key, weights, 1)).exp().mean(dim=1)
                for weights in draws
            ]
        )
        return float((estimates / kernel - 1).square().mean())

    orthogonal = (_performer.directions(replace(BASE, seed=seed), Parameters(8)) for seed in range(2000))
    independent = (torch.randn(8, 8, generator=generator, dtype=torch.float64) for _ in range(2000))
    assert mean_squared_error(orthogonal) < 0.9 * mean_squared_error(independent)


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("size", [1e-3, 4.0])
def test_orders_of_magnitude_cancel(mask, size):
    workload = replace(BASE, mask=mask)
    plain = operands(workload)
    given = Operands(*(size * tensor.detach() for tensor in (plain.query, plain.key)), plain.value, plain.upstream)
    result = run(VARIANT, workload, Parameters(), given.fresh(differentiable=True))
    right = VARIANT.reference(
        *(tensor.detach().double() for tensor in given.inputs),
        workload=workload,
        parameters=Parameters(),
        rows=torch.arange(workload.query_length),
    )
    assert all(gradient.isfinite().all() for gradient in result.gradients)
    torch.testing.assert_close(result.output.double(), right, rtol=1e-3, atol=1e-3)


def test_keys_of_another_magnitude_later_on_change_nothing_before_them():
    workload = replace(BASE, mask="causal", mode="fwd")
    given = operands(workload)
    early = Operands(given.query, given.key.detach().clone(), given.value, given.upstream)
    early.key[:, :, :100] *= 12  # their features are exp(-300) of those to come
    output = run(VARIANT, workload, Parameters(), early).output
    late = replace(early, key=early.key.clone())
    late.key[:, :, 100:] = 0
    torch.testing.assert_close(run(VARIANT, workload, Parameters(), late).output[:, :, :100], output[:, :, :100])
    assert output[:, :, :100].any(dim=-1).all()


@pytest.mark.parametrize("mask", ["padding:0.5", "causal+padding:0.5"])
def test_padding_is_never_read(mask):
    workload = replace(BASE, mask=mask)
    given = operands(workload)
    kept = Pattern.of(workload).kept.tolist()
    clean, dirty = (run(VARIANT, workload, Parameters(), some) for some in (given, parametrised.poisoned(given, kept)))
    assert torch.equal(clean.output, dirty.output)
    for first, second in zip(clean.gradients, dirty.gradients, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_memory_is_linear_in_training(mask):
    workload = Workload(heads=1, kv_heads=1, head_dim=16, mode="fwd_bwd", mask=mask)
    assert parametrised.memory_exponent(VARIANT, workload, Parameters(), (4096, 8192, 16384)) <= 1.1


def test_flops():
    one = replace(BASE, batch=1, mode="fwd")
    rows = (4 + 2) * 150
    assert performer.flops(one, Parameters(20)) == 2 * rows * 8 * 20 + 2 * rows * 20 * 9
    assert performer.flops(replace(one, mode="bwd"), Parameters(20)) == 2 * rows * 8 * 20 + 4 * rows * 20 * 9


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"mask": "window:9"}, "one state"), ({"mask": "softcap:2"}, "score"), ({"scale": -0.3}, "-0.3")],
)
def test_what_it_refuses(changes, word):
    (reason,) = VARIANT.obstacles(replace(BASE, **changes), Parameters())
    assert word in reason


def test_features_of_nothing():
    with pytest.raises(ValueError, match="features must be at least 1"):
        Parameters(0)


@pytest.mark.parametrize("mask", ["padding:0.5", "causal+padding:0.5"])
def test_padding_has_no_part_in_what_is_divided_out(mask):
    workload = replace(BASE, mask=mask)
    given = operands(workload)
    long = replace(
        given, key=(20 * given.key.detach()).requires_grad_()
    )  # features of zeros would be exp(500) times theirs
    result = run(VARIANT, workload, Parameters(), long)
    assert all(tensor.isfinite().all() for tensor in (result.output, *result.gradients))
    assert result.output.any(dim=-1).all()
