"""Our own LSH attention: its limit, its routing, what may not matter to it, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.measure.call import Call
from bench.measure.inputs import make
from tests.variants.parametrised import check, memory_exponent, operands, peak_bytes, run, strided
from variants import _lsh, reformer_pytorch
from variants._contract import Workload
from variants._lsh import Parameters, Plan
from variants._mask import Mask
from variants._pattern import Pattern
from variants.reformer_lsh import VARIANT

MASKS = ("full", "causal", "padding:0.5", "causal+padding:0.7")


def problem(length=100, **changes):
    usual = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "mode": "fwd_bwd"}
    return Workload(query_length=length, key_length=length, **(usual | changes))


def shared_attention(workload, given, among=None):
    """softmax(scale · q k̂ᵀ) v with k̂ = q / ‖q‖, among the given pairs, self only where there is nothing else."""
    query, value = given.query.detach().double(), given.value.detach().double()
    key = query / query.norm(dim=-1, keepdim=True)
    scores = query @ key.mT * workload.softmax_scale
    itself = torch.eye(workload.query_length, dtype=torch.bool)
    allowed = Pattern.of(workload).dense()[0] & ~itself
    scores = scores.masked_fill(~(allowed if among is None else allowed & among), -1e9)
    scores = scores.masked_fill(itself, -1e6)  # far above what is hidden, far below what is not
    scores = scores.masked_fill(~Pattern.of(workload).dense()[0] | ~(itself | allowed), -torch.inf)
    value = value.repeat_interleave(workload.group, dim=1)
    return torch.softmax(scores, dim=-1) @ value


# --- what it computes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize(
    ("length", "parameters"),
    [
        (100, Parameters(100, 1)),
        (100, Parameters(4096, 1)),
        (128, Parameters(64, 1)),  # two chunks see each other
        (100, Parameters(64, 8)),
        (1, Parameters(64, 1)),
    ],
)
def test_with_everything_in_sight_it_is_full_attention_with_shared_unit_keys(length, parameters, mask):
    workload = problem(length, mask=mask, dtype="float64", mode="fwd")
    given = operands(workload)
    torch.testing.assert_close(run(VARIANT, workload, parameters, given).output, shared_attention(workload, given))


def test_real_rows_of_a_padded_problem_have_that_limit_too():
    workload = problem(100, mask="padding:0.5", dtype="float64", mode="fwd")
    given = operands(workload)
    output, right = run(VARIANT, workload, Parameters(100, 1), given).output, shared_attention(workload, given)
    for item, kept in enumerate(Pattern.of(workload).kept.tolist()):
        torch.testing.assert_close(output[item, :, :kept], right[item, :, :kept])
        assert not output[item, :, kept:].any()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 128, 129, 1000])
def test_any_length_has_the_output_and_gradients_of_its_formula(length, mask):
    check(VARIANT, problem(length, mask=mask, heads=1, kv_heads=1), Parameters())


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("mask", MASKS)
def test_any_dtype(mask, dtype):
    check(VARIANT, problem(200, mask=mask, dtype=dtype), Parameters(16, 4))


@pytest.mark.parametrize(
    "changes",
    [
        {"value_head_dim": 5},
        {"value_head_dim": 40, "kv_heads": 1},
        {"scale": 3.0},
        {"scale": -0.5},
        {"scale": 0.0},
        {"head_dim": 1},
        {"head_dim": 80, "kv_heads": 4},
    ],
    ids=str,
)
def test_widths_groups_and_scales(changes):
    check(VARIANT, problem(150, mask="causal", dtype="float64", **changes), Parameters(16, 3))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_more_chunks_than_an_eight_bit_circle_holds(size):
    check(VARIANT, problem(450, heads=2, batch=1, mask="causal", dtype="float64"), Parameters(size, 3))


def test_pieces_of_any_size_give_the_same(monkeypatch):
    workload = problem(300, mask="causal", heads=6, dtype="float64")
    whole = run(VARIANT, workload, Parameters(16, 4))
    for size in (1, 1 << 10, 1 << 13):  # one chunk at a time, a few of one head, several heads
        monkeypatch.setattr(_lsh, "_CPU_PIECE", size)
        parts = run(VARIANT, workload, Parameters(16, 4))
        for first, second in zip((whole.output, *whole.gradients), (parts.output, *parts.gradients), strict=True):
            assert first is None or torch.allclose(first, second, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mask", ["full", "causal+padding:0.7"])
def test_gradients_are_those_of_finite_differences(mask):
    workload = problem(21, mask=mask, batch=1, heads=2, kv_heads=1, head_dim=3, dtype="float64")
    given = operands(workload)
    attend = VARIANT.build(workload, Parameters(4, 2))
    assert torch.autograd.gradcheck(lambda query, value: attend(query, query, value), (given.query, given.value))


def test_tensors_need_not_be_contiguous():
    workload = problem(200)
    given = operands(workload)
    first, second = (run(VARIANT, workload, Parameters(16, 4), each) for each in (given, strided(given)))
    torch.testing.assert_close(first.output, second.output)
    torch.testing.assert_close(first.gradients[0], second.gradients[0])


def test_zero_vectors_give_no_nan():
    workload = problem(200)
    given = operands(workload)
    with torch.no_grad():
        given.query[:, :, 50:60] = 0
    result = run(VARIANT, workload, Parameters(16, 4), given)
    assert all(tensor.isfinite().all() for tensor in (result.output, result.gradients[0], result.gradients[2]))


def test_far_larger_scores_than_usual_neither_overflow_nor_vanish():
    workload = problem(200, scale=300.0)
    given = operands(workload)
    routing = VARIANT.route(given.query, given.key, workload=workload, parameters=Parameters(16, 4))
    seen = _lsh.in_sight(routing, torch.arange(200), Plan.of(workload, Parameters(16, 4)))
    output = run(VARIANT, workload, Parameters(16, 4), given).output
    torch.testing.assert_close(output.double(), shared_attention(workload, given, seen), rtol=1e-3, atol=1e-3)


# --- routing --------------------------------------------------------------------------------------------------


def sets_in_sight(buckets, size):
    """The paper's P(i, r), read slowly: sort by bucket, cut into chunks, look at one's own and the one before."""
    order = sorted(range(len(buckets)), key=lambda position: (buckets[position], position))
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    return {position: set(chunk) | set(chunks[number - 1]) for number, chunk in enumerate(chunks) for position in chunk}


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_pair_met_in_several_rounds_counts_once_as_the_paper_divides(mask):
    workload = problem(77, batch=1, heads=1, kv_heads=1, mask=mask, dtype="float64", mode="fwd")
    parameters = Parameters(8, 4)
    given = operands(workload)
    routing = VARIANT.route(given.query, given.key, workload=workload, parameters=parameters)
    rounds = [sets_in_sight(buckets.tolist(), parameters.bucket_size) for buckets in routing[0, 0]]
    query, value = given.query[0, 0], given.value[0, 0]
    scores = query @ (query / query.norm(dim=-1, keepdim=True)).T * workload.softmax_scale
    visible = Pattern.of(workload).dense()[0].expand(1, 1, 77, 77)[0, 0]
    output = torch.zeros_like(value)
    for i in range(77):
        seen = [[j for j in one[i] if j != i and visible[i, j]] for one in rounds]
        met = torch.tensor([sum(j in one for one in seen) for j in range(77)])
        if not met.any():
            output[i] = value[i]
            continue
        total = torch.logsumexp(scores[i, met > 0], dim=0)
        for one in seen:  # o_i = Σ_r exp(z_r − z) Σ_j exp(s_ij − log N_ij − z_r) v_j
            if one:
                terms = scores[i, one] - met[one].log()
                own = torch.logsumexp(terms, dim=0)
                output[i] += torch.exp(own - total) * (torch.exp(terms - own) @ value[one])
    torch.testing.assert_close(run(VARIANT, workload, parameters, given).output[0, 0], output)


def test_buckets_are_the_nearest_of_the_rotated_axes_and_their_opposites():
    workload, parameters = problem(200, mask="padding:0.6", dtype="float64"), Parameters(16, 3)
    given = operands(workload)
    buckets = VARIANT.route(given.query, given.key, workload=workload, parameters=parameters)
    rotations = _lsh.drawn_rotations(Plan.of(workload, parameters)).double()
    assert rotations.shape == (4, 16, 3, 7)  # 200 / 16 is 12.5 chunks: 14 buckets
    rotated = torch.einsum("bhnd,hdri->bhrni", given.query, rotations)
    expected = torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
    for item, kept in enumerate(Pattern.of(workload).kept.tolist()):
        assert torch.equal(buckets[item, :, :, :kept], expected[item, :, :, :kept])
        assert (buckets[item, :, :, kept:] == 14).all()


def test_rotations_are_seeded_differ_by_head_and_round_and_are_no_inputs():
    workload = problem(200, heads=2, kv_heads=2)
    rotations = _lsh.drawn_rotations(Plan.of(workload, Parameters(16, 3)))
    assert torch.equal(rotations, _lsh.drawn_rotations(Plan.of(workload, Parameters(16, 3))))
    assert torch.equal(rotations[:, :, :2], _lsh.drawn_rotations(Plan.of(workload, Parameters(16, 2))))
    assert not torch.equal(rotations, _lsh.drawn_rotations(Plan.of(replace(workload, seed=1), Parameters(16, 3))))
    assert len({float(part[0, 0]) for part in (*rotations[0].unbind(1), *rotations[1].unbind(1))}) == 6
    plainly_drawn = torch.randn(100_000, generator=torch.Generator().manual_seed(workload.seed))
    for drawn in (plainly_drawn, *make(workload)):
        assert not torch.isin(rotations[..., 0], drawn).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_routing_hardly_ever_differs_from_that_in_float64(dtype):
    workload = problem(2048, dtype=dtype, mode="fwd")
    given = operands(workload)
    here, exact = (
        VARIANT.route(query, query, workload=workload, parameters=Parameters())
        for query in (given.query, given.query.double())
    )
    assert (here != exact).float().mean() < 1e-4


@pytest.mark.parametrize("chunks", [3, 4, 100, 127, 128, 129, 1000])
def test_on_the_circle_a_query_sees_its_chunk_and_the_one_before(chunks):
    every = torch.arange(chunks)
    places, reach = _lsh.on_a_circle(every, chunks)
    assert places.dtype == (torch.int8 if chunks <= 128 else torch.int16)
    seen = (places ^ torch.iinfo(places.dtype).min)[:, None] - places <= reach
    back = (every[:, None] - every) % chunks
    assert torch.equal(seen, back <= 1)


# --- what may not matter --------------------------------------------------------------------------------------


def overwritten(given, **where):
    """The same operands, with noise in the named tensors at an index."""
    after = given.fresh(differentiable=given.query.requires_grad)
    with torch.no_grad():
        for name, (index, content) in where.items():
            part = getattr(after, name)[index]
            getattr(after, name)[index] = content * torch.randn_like(part)
    return after


def test_future_values_change_no_bit_of_the_past():
    workload = problem(300, mask="causal")
    given = operands(workload)
    later = (..., slice(150, None), slice(None))
    before = run(VARIANT, workload, Parameters(16, 4), given).output
    after = run(VARIANT, workload, Parameters(16, 4), overwritten(given, value=(later, 1e3))).output
    assert torch.equal(before[:, :, :150], after[:, :, :150])
    assert not torch.equal(before[:, :, 150:], after[:, :, 150:])


def test_future_keys_leak_through_routing_and_only_so():
    workload = problem(300, mask="causal")
    given = operands(workload)
    later = (..., slice(150, None), slice(None))
    for parameters, leaks in ((Parameters(16, 4), True), (Parameters(300, 4), False)):
        before = run(VARIANT, workload, parameters, given).output
        after = run(VARIANT, workload, parameters, overwritten(given, query=(later, 1.0))).output
        assert torch.equal(before[:, :, :150], after[:, :, :150]) != leaks
    assert VARIANT.causal_leak == "routing"


@pytest.mark.parametrize("mask", ["padding:0.5", "causal+padding:0.7"])
def test_no_content_of_padding_changes_a_bit(mask):
    workload, parameters = problem(300, mask=mask), Parameters(16, 4)
    given = operands(workload)
    before = run(VARIANT, workload, parameters, given)
    kept = Pattern.of(workload).kept.tolist()
    after = given
    for item, count in enumerate(kept):
        padded = (item, slice(None), slice(count, None))
        after = overwritten(after, query=(padded, torch.nan), value=(padded, torch.nan))
    after = run(VARIANT, workload, parameters, after)
    assert torch.equal(before.output, after.output)
    for first, second in zip(before.gradients, after.gradients, strict=True):
        assert first is None or torch.equal(first, second)
        for item, count in enumerate(kept):
            assert first is None or not first[item, :, count:].any()


def test_items_and_heads_do_not_touch_each_other():
    workload = problem(300, heads=6, kv_heads=3)
    given = operands(workload)
    before = run(VARIANT, workload, Parameters(16, 4), given).output
    item = overwritten(given, query=((1,), 1.0), value=((1,), 1.0))
    assert torch.equal(before[0], run(VARIANT, workload, Parameters(16, 4), item).output[0])
    head = overwritten(given, query=((slice(None), slice(2, 4)), 1.0), value=((slice(None), 1), 1.0))
    after = run(VARIANT, workload, Parameters(16, 4), head).output
    assert torch.equal(before[:, :2], after[:, :2])
    assert torch.equal(before[:, 4:], after[:, 4:])
    assert not torch.equal(before[:, 2:4], after[:, 2:4])


# --- what it is worth, and what it costs ----------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_more_hashes_come_closer_to_full_attention_on_average(mask):
    errors = dict.fromkeys((1, 2, 4, 8, 16), 0.0)
    for seed in range(3):
        workload = problem(512, heads=4, kv_heads=4, mask=mask, seed=seed, mode="fwd")
        given = operands(workload)
        right = shared_attention(workload, given)
        for hashes in errors:
            output = run(VARIANT, workload, Parameters(16, hashes), given).output
            errors[hashes] += float((output.double() - right).norm() / right.norm())
    assert list(errors.values()) == sorted(errors.values(), reverse=True)
    assert errors[16] < errors[1] / 4


@pytest.mark.parametrize("length", [1000, 1024])
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_its_peak_is_less_than_a_third_of_the_package_s(mode, length):
    workload = problem(length, batch=1, heads=8, kv_heads=8, head_dim=64, mode=mode)
    theirs = peak_bytes(reformer_pytorch.VARIANT, workload, reformer_pytorch.Parameters())
    assert peak_bytes(VARIANT, workload, Parameters()) < theirs / 3


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_memory_is_linear(mode):
    workload = problem(batch=1, heads=2, kv_heads=2, head_dim=32, mode=mode)
    assert memory_exponent(VARIANT, workload, Parameters(), (4096, 8192, 16384)) < 1.1


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("changes", [{}, {"mask": "causal+padding:0.7"}, {"value_head_dim": 24}], ids=str)
@pytest.mark.parametrize("length", [10, 25, 300])
def test_flops_are_those_that_are_issued(length, changes, mode):
    workload, parameters = problem(length, mode=mode, **changes), Parameters(16, 3)
    call = Call(VARIANT.build(workload, parameters), operands(workload), mode)
    prepared = call.prepare()
    with FlopCounterMode(display=False) as counted:
        call.timed()(prepared)
    assert counted.get_total_flops() == VARIANT.flops(workload, parameters)


def test_a_bucket_larger_than_the_problem_costs_no_more_than_one_over_all():
    workload = problem(100)
    assert VARIANT.flops(workload, Parameters(1 << 20)) == VARIANT.flops(workload, Parameters(100))
    assert peak_bytes(VARIANT, workload, Parameters(1 << 20)) == peak_bytes(VARIANT, workload, Parameters(100))


# --- what it refuses ------------------------------------------------------------------------------------------


def test_it_refuses_what_it_cannot_honour():
    assert VARIANT.obstacles(problem(mask="causal+padding:0.5"), Parameters()) == []
    for mask in ("window:8", "band:4", "prefix:5", "document:2", "bigbird:16x2x1", "alibi", "softcap:5"):
        (reason,) = VARIANT.obstacles(problem(mask=mask), Parameters())
        assert str(Mask.parse(mask)) in reason
    (reason,) = VARIANT.obstacles(Workload(query_length=10, key_length=20), Parameters())
    assert "10 and 20" in reason
    assert len(VARIANT.obstacles(problem(), Parameters(0, 0))) == 2
