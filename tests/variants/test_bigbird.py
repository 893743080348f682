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
from variants import bigbird, flex_bigbird
from variants._bigbird import Parameters, composed
from variants._contract import Workload
from variants._pattern import Pattern

VARIANT = bigbird.VARIANT
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=150, key_length=150, head_dim=8, mode="fwd_bwd")
SMALL = Parameters(block=16, global_blocks=2, random_blocks=1)
PADDED = replace(BASE, mask="padding:0.5")


@st.composite
def cases(draw):
    group, kv_heads = draw(st.sampled_from((1, 3))), draw(st.integers(1, 2))
    query_length = draw(st.integers(1, 130))
    workload = Workload(
        batch=draw(st.integers(1, 2)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        query_length=query_length,
        key_length=draw(st.one_of(st.just(query_length), st.integers(1, 130))),
        head_dim=draw(st.sampled_from((1, 8))),
        value_head_dim=draw(st.sampled_from((None, 5))),
        dtype=draw(st.sampled_from(("float64", "float32", "bfloat16", "float16"))),
        mask=draw(st.sampled_from(("full", "padding:0.3", "padding:0.9"))),
        mode=draw(st.sampled_from(("fwd", "fwd_bwd"))),
        seed=draw(st.integers(0, 3)),
    )
    parameters = Parameters(draw(st.integers(1, 40)), draw(st.integers(0, 3)), draw(st.integers(0, 3)))
    return workload, parameters


@given(cases())
def test_it_is_exact_attention_under_its_blocks(case):
    parametrised.check(VARIANT, *case)


def test_many_gradients_sum_up_in_half_precision():
    workload = replace(square(BASE, 4000), batch=1, heads=1, kv_heads=1, dtype="bfloat16")
    parameters = Parameters(block=4, global_blocks=1, random_blocks=1)
    given = operands(workload)
    given = replace(given, upstream=torch.ones_like(given.upstream))  # thousands of small weights, none negative
    total = run(VARIANT, workload, parameters, given).gradients[2].double()
    right = operands(replace(workload, dtype="float64"))
    right = replace(right, upstream=torch.ones_like(right.upstream))
    expected = run(VARIANT, replace(workload, dtype="float64"), parameters, right).gradients[2]
    torch.testing.assert_close(total[:, :, :4], expected[:, :, :4], rtol=0.02, atol=0)


@pytest.mark.parametrize(
    "parameters",
    [Parameters(), Parameters(block=10, global_blocks=15), Parameters(block=8, global_blocks=0, random_blocks=30)],
    ids=str,
)
@pytest.mark.parametrize("mask", ["full", "padding:0.5"])
def test_a_pattern_that_covers_everything_is_exact_attention(parameters, mask):
    workload = replace(square(BASE, 120), mask=mask)
    given = operands(workload)
    output = run(VARIANT, workload, parameters, given).output
    torch.testing.assert_close(output.double(), parametrised.exactly(workload, given), rtol=1e-5, atol=1e-6)


def test_it_is_not_exact_attention_where_blocks_are_missing():
    assert parametrised.relative_error(VARIANT, replace(BASE, mode="fwd"), SMALL) > 0.1


@pytest.mark.parametrize(
    "workload",
    [BASE, PADDED, replace(PADDED, query_length=40), replace(BASE, key_length=40), square(BASE, 1), square(BASE, 512)],
)
@pytest.mark.parametrize("parameters", [SMALL, Parameters(), Parameters(7, 0, 0), Parameters(7, 1, 4)], ids=str)
def test_every_pair_in_sight_is_computed_once_and_no_other(workload, parameters):
    seen = torch.zeros(workload.batch * workload.kv_heads, workload.query_length, workload.key_length, dtype=torch.int)
    for tile in bigbird.tiles_of(workload, parameters):
        for block, queries in enumerate(tile.queries):
            keys = torch.arange(workload.key_length)[tile.keys] if isinstance(tile.keys, slice) else tile.keys[block]
            seen[tile.heads, queries[:, None], keys] += 1
    allowed = Pattern.of(composed(workload, parameters)).dense()[0].expand(workload.batch, workload.kv_heads, -1, -1)
    assert torch.equal(seen, allowed.flatten(0, 1).int())


def test_issued_flops_are_those_of_the_pairs_in_sight():
    pairs = Pattern.of(composed(PADDED, SMALL)).pairs
    forward = bigbird.flops(replace(PADDED, mode="fwd"), SMALL)
    assert forward == 4 * PADDED.head_dim * PADDED.heads * pairs
    assert forward < 4 * PADDED.head_dim * PADDED.heads * PADDED.batch * 150 * 150 / 3
    wider = replace(PADDED, value_head_dim=5)
    assert bigbird.flops(replace(wider, mode="bwd"), SMALL) == 2 * PADDED.heads * pairs * (4 * 8 + 3 * 5)
    assert bigbird.flops(replace(PADDED, mode="bwd"), SMALL) == 2 * PADDED.heads * pairs * 5 * 8  # nothing twice
    longer = [bigbird.flops(square(BASE, length), Parameters()) for length in (4096, 8192)]
    assert longer[1] / longer[0] == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("mask", ["full", "padding:0.5"])
def test_going_on_from_the_forward_is_computing_it_again(mask, dtype, monkeypatch):
    workload = replace(BASE, mask=mask, dtype=dtype)
    given = operands(workload)
    fused = run(VARIANT, workload, SMALL, given)
    monkeypatch.setattr(bigbird, "_is_fused", lambda workload: False)
    again = run(VARIANT, workload, SMALL, given)
    tolerance = {"rtol": 0.02, "atol": 0.02} if dtype == "bfloat16" else {"rtol": 1e-4, "atol": 1e-5}
    for first, second in zip((fused.output, *fused.gradients), (again.output, *again.gradients), strict=True):
        torch.testing.assert_close(first, second, **tolerance)


def test_keys_whose_channels_lie_apart():
    given = operands(BASE)
    tensors = [tensor.detach().mT.contiguous().mT.requires_grad_() for tensor in given.inputs]
    assert tensors[1].stride(-1) != 1
    right, result = (
        run(VARIANT, BASE, Parameters(), given),
        run(VARIANT, BASE, Parameters(), replace_inputs(given, tensors)),
    )
    torch.testing.assert_close(result.output, right.output)
    for first, second in zip(result.gradients, right.gradients, strict=True):
        torch.testing.assert_close(first, second)


def replace_inputs(given, tensors):
    return replace(given, **dict(zip(("query", "key", "value"), tensors, strict=True)))


@pytest.mark.parametrize("budget", [1, 20000, 60000])
def test_what_is_gathered_at_once_is_bounded_and_changes_nothing(budget, monkeypatch):
    workload = square(BASE, 300)
    row_bytes = 2 * workload.head_dim * 4
    whole = run(VARIANT, workload, SMALL)
    monkeypatch.setattr(bigbird, "_GATHERED_BYTES_PER_THREAD", budget)
    gathering = [tile for tile in bigbird.tiles_of(workload, SMALL) if not isinstance(tile.keys, slice)]
    for tile in gathering:
        heads = tile.heads.stop - tile.heads.start
        assert heads * tile.keys.numel() * row_bytes <= budget or heads == len(tile.keys) == 1
    cut = run(VARIANT, workload, SMALL)
    torch.testing.assert_close(cut.output, whole.output)
    for first, second in zip(cut.gradients, whole.gradients, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("parameters", [SMALL, Parameters()], ids=str)
def test_padding_is_never_read(parameters):
    given = operands(PADDED)
    kept = Pattern.of(PADDED).kept.tolist()
    clean, dirty = (run(VARIANT, PADDED, parameters, some) for some in (given, parametrised.poisoned(given, kept)))
    assert torch.equal(clean.output, dirty.output)
    for first, second in zip(clean.gradients, dirty.gradients, strict=True):
        assert torch.equal(first, second)
    for gradient in dirty.gradients[1:]:
        assert not any(gradient[item, :, count:].any() for item, count in enumerate(kept))


def test_queries_that_see_only_padding_give_zeros():
    workload, parameters = replace(PADDED, mask="padding:0.3"), Parameters(10, 0, 0)
    result = run(VARIANT, workload, parameters)
    hidden = ~Pattern.of(composed(workload, parameters)).dense()[0].any(dim=-1).expand(-1, workload.heads, -1)
    assert hidden.any()
    assert not hidden.all()
    assert not result.output[hidden].any()
    assert result.output[~hidden].any(dim=-1).all()
    assert not result.gradients[0][hidden].any()


def test_any_strides():
    given = operands(BASE)
    assert torch.equal(
        run(VARIANT, BASE, SMALL, given).output, run(VARIANT, BASE, SMALL, parametrised.strided(given)).output
    )
    gradients = run(VARIANT, BASE, SMALL, parametrised.strided(given)).gradients
    for first, second in zip(run(VARIANT, BASE, SMALL, given).gradients, gradients, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_memory_is_linear(mode):
    workload = Workload(heads=1, kv_heads=1, head_dim=16, mode=mode)
    lengths = (8192, 16384, 32768)
    assert parametrised.memory_exponent(VARIANT, workload, Parameters(), lengths) <= 1.1


def test_training_keeps_a_number_per_row_beside_what_there_is():
    workload = replace(square(BASE, 4096), batch=1)
    weight = weigh_cpu(Call(VARIANT.build(workload, Parameters()), operands(workload), "fwd_bwd")).weight
    assert weight.saved_bytes == 4 * workload.heads * workload.query_length


@pytest.mark.parametrize(
    "better", [Parameters(16, 2, 3), Parameters(16, 6, 0), Parameters(48, 2, 0)], ids=["random", "global", "window"]
)
def test_more_in_sight_is_nearer_to_exact(better):
    worse = Parameters(16, 2, 0)
    workloads = [replace(square(BASE, 400), mode="fwd", seed=seed) for seed in range(4)]
    errors = [
        sum(parametrised.relative_error(VARIANT, workload, parameters) for workload in workloads)
        for parameters in (worse, better)
    ]
    assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize(
    ("mask", "word"),
    [
        ("causal", "both ways"),
        ("window:9", "both ways"),
        ("prefix:9", "both ways"),
        ("band:9", "its own"),
        ("document:2", "its own"),
        ("softcap:2", "scores"),
        ("alibi", "scores"),
        ("bigbird:32x2x3", "64x2x3"),
    ],
)
@pytest.mark.parametrize("variant", [VARIANT, flex_bigbird.VARIANT], ids=lambda variant: variant.name)
def test_masks_that_it_refuses(variant, mask, word):
    workload = replace(BASE, mode="fwd", mask=mask)
    (reason,) = variant.obstacles(workload, Parameters())
    assert mask.removeprefix("bigbird:") in reason
    assert word in reason


def test_a_mask_of_its_own_blocks_is_honoured_and_exact():
    workload = replace(BASE, mask="padding:0.5+bigbird:16x2x1")
    given = operands(workload)
    output = run(VARIANT, workload, SMALL, given).output
    torch.testing.assert_close(output.double(), parametrised.exactly(workload, given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"block": 0}, {"global_blocks": -1}, {"random_blocks": -1}])
def test_parameters_that_make_no_pattern(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be at least"):
        Parameters(**wrong)


def test_flex_runs_the_same_blocks():
    workload = replace(PADDED, mode="fwd")
    given = operands(workload)
    ours, theirs = (run(variant, workload, SMALL, given).output for variant in (VARIANT, flex_bigbird.VARIANT))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert flex_bigbird.flops(square(workload, 160), SMALL) >= bigbird.flops(square(workload, 160), SMALL)
