"""The sliding window: exact attention in its band, over everything exact attention, and nothing outside is touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.measure.call import Call
from bench.measure.memory import weigh_cpu
from tests.variants import parametrised
from tests.variants.parametrised import operands, run, square
from variants import flex_local, local
from variants._contract import Workload
from variants._local import Parameters, composed
from variants._pattern import Pattern

VARIANT = local.VARIANT
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=150, key_length=150, head_dim=8, mode="fwd_bwd")
PADDED = replace(BASE, mask="padding:0.5")


@st.composite
def cases(draw):
    group, kv_heads = draw(st.sampled_from((1, 3))), draw(st.integers(1, 2))
    query_length = draw(st.integers(1, 300))
    workload = Workload(
        batch=draw(st.integers(1, 2)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        query_length=query_length,
        key_length=draw(st.one_of(st.just(query_length), st.integers(1, 300))),
        head_dim=draw(st.sampled_from((1, 8))),
        value_head_dim=draw(st.sampled_from((None, 5))),
        dtype=draw(st.sampled_from(("float64", "float32", "bfloat16", "float16"))),
        mask=draw(
            st.sampled_from(
                (
                    "full",
                    "causal",
                    "window:20",
                    "band:20",
                    "prefix:30",
                    "document:4",
                    "causal+padding:0.3",
                    "padding:0.3",
                )
            )
        ),
        mode=draw(st.sampled_from(("fwd", "fwd_bwd"))),
        seed=draw(st.integers(0, 3)),
    )
    return workload, Parameters(draw(st.integers(1, 200)))


@given(cases())
def test_it_is_exact_attention_in_its_window(case):
    parametrised.check(VARIANT, *case)


@pytest.mark.parametrize(
    ("mask", "means"),
    [
        ("full", "band:9"),
        ("causal", "window:9"),
        ("window:5", "window:5"),
        ("window:50", "window:9"),
        ("band:5", "band:5"),
        ("band:50", "band:9"),
        ("causal+band:5", "window:9+band:5"),
        ("document:3+causal", "window:9+document:3"),
        ("prefix:4", "band:9+prefix:4"),
        ("padding:0.5", "band:9+padding:0.5"),
    ],
)
def test_what_the_window_makes_of_a_mask(mask, means):
    assert composed(replace(BASE, mask=mask), Parameters(9)).mask == means


@pytest.mark.parametrize("mask", ["full", "causal", "padding:0.5", "causal+padding:0.5", "document:3"])
@pytest.mark.parametrize("lengths", [(150, 150), (60, 290), (290, 60)])
def test_a_window_over_everything_is_exact_attention(mask, lengths):
    workload = replace(BASE, mask=mask, query_length=lengths[0], key_length=lengths[1])
    given = operands(workload)
    output = run(VARIANT, workload, Parameters(300), given).output
    torch.testing.assert_close(output.double(), parametrised.exactly(workload, given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_window_one_short_of_everything_is_not_exact_attention(mask):
    workload = replace(square(BASE, 20), mask=mask, mode="fwd")
    everything = 19 if mask == "full" else 20
    assert parametrised.relative_error(VARIANT, workload, Parameters(everything)) < 1e-6
    assert parametrised.relative_error(VARIANT, workload, Parameters(everything - 1)) > 1e-3


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_query_depends_on_the_keys_of_its_window_alone(mask):
    workload, row, window = replace(BASE, mask=mask), 75, 9
    given = operands(workload)
    result = run(VARIANT, workload, Parameters(window), replace(given, upstream=given.upstream.clone()))
    upstream = torch.zeros_like(given.upstream)
    upstream[:, :, row] = 1
    gradients = run(VARIANT, workload, Parameters(window), replace(given, upstream=upstream)).gradients
    seen = gradients[2].abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()
    assert seen == list(range(row - 8, row + 1) if mask == "causal" else range(row - 9, row + 10))
    assert result.output.isfinite().all()


@pytest.mark.parametrize(
    "workload",
    [BASE, PADDED, replace(BASE, mask="document:5"), replace(BASE, query_length=280), replace(BASE, key_length=280)],
)
def test_tiles_hold_all_that_is_in_sight_and_nothing_twice(workload):
    pattern = Pattern.of(composed(workload, Parameters(20)))
    seen = torch.zeros(workload.batch, 1, workload.query_length, workload.key_length, dtype=torch.int)
    for tile in local.tiles_of(pattern):
        part = torch.ones(()) if tile.seen is None else tile.seen
        part = part if tile.empty is None else part & ~tile.empty
        seen[:, :, tile.queries, tile.keys] += part.int()
    assert torch.equal(seen, pattern.dense()[0].expand_as(seen).int())


def test_tiles_in_the_middle_share_one_mask():
    tiles = list(local.tiles_of(Pattern.of(composed(square(BASE, 4096), Parameters(100)))))
    assert len({id(tile.seen) for tile in tiles}) == 3


def test_queries_that_see_nothing_give_zeros_and_no_gradient():
    workload, parameters = replace(PADDED, mask="padding:0.3"), Parameters(9)
    result = run(VARIANT, workload, parameters)
    hidden = ~Pattern.of(composed(workload, parameters)).dense()[0].any(dim=-1).expand(-1, workload.heads, -1)
    assert hidden.any()
    assert not hidden.all()
    assert not result.output[hidden].any()
    assert result.output[~hidden].any(dim=-1).all()
    assert not result.gradients[0][hidden].any()
    assert all(gradient.isfinite().all() for gradient in result.gradients)


def test_any_strides():
    given = operands(BASE)
    plain, strided = (run(VARIANT, BASE, Parameters(20), some) for some in (given, parametrised.strided(given)))
    torch.testing.assert_close(plain.output, strided.output)
    for first, second in zip(plain.gradients, strided.gradients, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_memory_is_linear(mode):
    workload = Workload(heads=1, kv_heads=1, head_dim=16, mode=mode)
    assert parametrised.memory_exponent(VARIANT, workload, Parameters(), (8192, 16384, 32768)) <= 1.1


def test_training_keeps_nothing_but_the_inputs():
    workload = replace(square(BASE, 2048), batch=1)
    weight = weigh_cpu(Call(VARIANT.build(workload, Parameters()), operands(workload), "fwd_bwd")).weight
    assert weight.saved_bytes == 0


def test_a_wider_window_is_nearer_to_exact():
    workloads = [replace(square(BASE, 400), mode="fwd", seed=seed) for seed in range(4)]
    errors = [
        sum(parametrised.relative_error(VARIANT, workload, Parameters(window)) for workload in workloads)
        for window in (10, 40, 160)
    ]
    assert errors[2] < 0.9 * errors[1] < 0.81 * errors[0]


def test_flops():
    one = replace(square(BASE, 4096), batch=1, heads=1, kv_heads=1, mode="fwd", mask="causal")
    inside = 128 * (128 + 99)  # each block sees itself and 99 keys before it
    assert local.flops(one, Parameters(100)) == 4 * 8 * (32 * inside - 128 * 99)
    everything = 4 * 8 * 4096 * 4096
    assert local.flops(replace(one, mask="full"), Parameters(4096)) == everything


@pytest.mark.parametrize("mask", ["softcap:2", "alibi", "bigbird:16x2x1"])
def test_what_it_refuses_and_who_takes_it(mask):
    (reason,) = VARIANT.obstacles(replace(BASE, mask=mask), Parameters())
    assert mask in reason
    assert "flex_local" in reason
    assert not flex_local.VARIANT.obstacles(replace(BASE, mask=mask, mode="fwd"), Parameters())


def test_a_window_of_nothing_is_no_window():
    with pytest.raises(ValueError, match="window must be at least 1"):
        Parameters(0)
