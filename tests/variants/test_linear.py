"""Linear attention and fast weights: against recurrences written out token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import elu

from tests.variants import parametrised
from tests.variants.parametrised import operands, run, square
from variants import _kernelized, _linear, _linear_full, fast_weight, linear_attention
from variants._contract import NoParameters, Workload
from variants._pattern import Pattern

VARIANT = linear_attention.VARIANT
NONE = NoParameters()
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=150, key_length=150, head_dim=8, mode="fwd_bwd")
CAUSAL = replace(BASE, mask="causal")


def recurrent(query, key, value):
    """What a single head gives for ``(N, D)``: a state and a sum of features, and one more token at a time."""
    state, total, outputs = 0, 0, []
    for q, k, v in zip(elu(query) + 1, elu(key) + 1, value, strict=True):
        state, total = state + torch.outer(k, v), total + k
        outputs.append(q @ state / (q @ total))
    return torch.stack(outputs)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 300])
def test_causal_is_the_recurrence(length):
    workload = replace(square(CAUSAL, length), dtype="float64")
    given = operands(workload)
    result = run(VARIANT, workload, NONE, given)
    inputs = [tensor.detach().requires_grad_() for tensor in given.inputs]
    heads = [recurrent(inputs[0][1, head], *(tensor[1, head // 2] for tensor in inputs[1:])) for head in range(4)]
    right = torch.stack(heads)
    torch.testing.assert_close(result.output[1], right)
    gradients = torch.autograd.grad(right, inputs, given.upstream[1])
    for ours, theirs in zip(result.gradients, gradients, strict=True):
        torch.testing.assert_close(ours[1], theirs[1])


@pytest.mark.parametrize(
    ("mask", "lengths"),
    [
        (mask, lengths)
        for mask in ("causal", "causal+padding:0.5", "full", "padding:0.5")
        for lengths in ((150, 400), (400, 150))
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lengths_that_differ(mask, lengths, dtype):
    workload = replace(BASE, mask=mask, query_length=lengths[0], key_length=lengths[1], dtype=dtype)
    parametrised.check(VARIANT, workload, NONE)


def test_the_last_causal_query_sees_what_all_see_without_a_mask():
    causal, full = (run(VARIANT, workload, NONE).output for workload in (CAUSAL, BASE))
    torch.testing.assert_close(causal[:, :, -1], full[:, :, -1])
    assert not torch.allclose(causal[:, :, -2], full[:, :, -2])


def test_one_key_is_all_there_is_to_see():
    given = operands(square(CAUSAL, 1))
    output = run(VARIANT, square(CAUSAL, 1), NONE, given).output
    torch.testing.assert_close(output, given.value.repeat_interleave(2, dim=1))


@pytest.mark.parametrize("x", [-60.0, -20.0, -1.0, 0.0, 3.0])
def test_features_far_below_zero_are_no_rounding(x):
    numbers = torch.tensor([x], requires_grad=True)
    feature = _linear.elu_plus_one(numbers)
    (slope,) = torch.autograd.grad(feature, numbers)
    precise = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    right = torch.where(precise > 0, precise + 1, precise.exp())
    (right_slope,) = torch.autograd.grad(right, precise)
    torch.testing.assert_close(feature.double(), right, rtol=1e-6, atol=0)
    torch.testing.assert_close(slope.double(), right_slope, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mask", ["padding:0.5", "causal+padding:0.5"])
def test_padding_is_never_read(mask):
    workload = replace(BASE, mask=mask)
    given = operands(workload)
    kept = Pattern.of(workload).kept.tolist()
    clean, dirty = (run(VARIANT, workload, NONE, some) for some in (given, parametrised.poisoned(given, kept)))
    assert torch.equal(clean.output, dirty.output)
    for first, second in zip(clean.gradients, dirty.gradients, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_any_strides(mask):
    workload = replace(BASE, mask=mask)
    given = operands(workload)
    plain, strided = (run(VARIANT, workload, NONE, some) for some in (given, parametrised.strided(given)))
    torch.testing.assert_close(plain.output, strided.output)
    for first, second in zip(plain.gradients, strided.gradients, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_memory_is_linear_in_training(mask):
    workload = Workload(heads=1, kv_heads=1, head_dim=16, mode="fwd_bwd", mask=mask)
    assert parametrised.memory_exponent(VARIANT, workload, NONE, (4096, 8192, 16384)) <= 1.1


@pytest.mark.parametrize(("positions", "pieces"), [(7, 2 * 2 * 22), (150, 2 * 2), (310, 2), (700, 1)])
@pytest.mark.parametrize("mask", ["full", "padding:0.4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pieces_change_nothing(mask, dtype, positions, pieces, monkeypatch):
    workload = replace(BASE, mask=mask, dtype=dtype)
    given = operands(workload)
    monkeypatch.setattr(_linear_full, "_PIECE_BYTES_PER_THREAD", 1 << 30)
    whole = run(VARIANT, workload, NONE, given)
    monkeypatch.setattr(_linear_full, "_PIECE_BYTES_PER_THREAD", positions * 2 * 8 * 4 // torch.get_num_threads())
    assert len([*_linear_full._pieces(given.query.unflatten(1, (2, 2)))]) == pieces
    parts = run(VARIANT, workload, NONE, given)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == "float32" else {"rtol": 0.02, "atol": 0.02}
    torch.testing.assert_close(parts.output, whole.output, **tolerance)
    for first, second in zip(parts.gradients, whole.gradients, strict=True):
        torch.testing.assert_close(first, second, **tolerance)


def test_training_keeps_no_features():
    workload = replace(square(BASE, 4096), batch=1, heads=2, kv_heads=2, head_dim=64)
    given = operands(workload)
    with torch.enable_grad():
        output = linear_attention.VARIANT.build(workload, NONE)(*given.inputs)
    saved = sum(tensor.numel() for tensor in output.grad_fn.next_functions[0][0].saved_tensors)
    assert saved < 4.1 * given.query.numel()


def test_flops():
    full = replace(BASE, batch=1, mode="fwd")
    assert _linear.flops(full, NONE) == 2 * (4 + 2) * 150 * 8 * 8
    states = (4 + 2) * 150 * 8 * 9
    causal = replace(CAUSAL, batch=1, mode="fwd")
    assert _linear.flops(causal, NONE) == 2 * (states + 4 * (128**2 + 22**2) * (8 + 9))
    longer = [_linear.flops(square(CAUSAL, length), NONE) for length in (4096, 8192)]
    assert longer[1] == 2 * longer[0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mask": "window:9"}, "one state"),
        ({"mask": "band:9"}, "one state"),
        ({"mask": "document:2"}, "one state"),
        ({"mask": "prefix:9"}, "one state"),
        ({"mask": "softcap:2"}, "score"),
        ({"mask": "alibi"}, "score"),
        ({"scale": 0.3}, "scale"),
    ],
)
def test_what_it_refuses(changes, word):
    (reason,) = VARIANT.obstacles(replace(BASE, **changes), NONE)
    assert word in reason
    assert str(*changes.values()) in reason


# --- the scan with shifts, as it serves Performer -----------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(20, 20), (20, 33), (33, 20), (5, 33)])
def test_a_scan_with_shifts(lengths, monkeypatch):
    monkeypatch.setattr(_kernelized, "CHUNK", 8)
    generator = torch.Generator().manual_seed(0)
    queries, keys = lengths
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((1, 2, 3, queries, 4), (1, 2, 1, keys, 4), (1, 2, 1, keys, 5))
    )
    shift = torch.rand(1, 2, 1, keys, generator=generator, dtype=torch.float64).mul(3).cumsum(-1)
    assert torch.autograd.gradcheck(
        lambda *inputs: _kernelized.causal_sums(*inputs, shift), (query, key, value), fast_mode=True
    )
    sums = _kernelized.causal_sums(query, key, value, shift)
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    last = torch.arange(queries) + keys - queries
    weights = (query @ (key * shift.exp()[..., None]).mT * seen) / shift[..., last.clamp(min=0)].exp()[..., None]
    torch.testing.assert_close(sums, weights @ value)


# --- fast weights -------------------------------------------------------------------------------------------------

DELTA, SUM = fast_weight.Parameters(), fast_weight.Parameters(rule="sum")
PROGRAMMER = fast_weight.VARIANT


def written_at_once(query, key, value, beta):
    """The delta rule on one head ``(N, D)`` as a single triangular system over all tokens."""
    queries, keys = ((elu(x) + 1) / (elu(x) + 1).sum(dim=1, keepdim=True) for x in (query, key))
    system = torch.eye(len(keys), dtype=keys.dtype) + beta * (keys @ keys.mT).tril(-1)
    return (queries @ keys.mT).tril() @ torch.linalg.inv(system) @ (beta * value)


@pytest.mark.parametrize("length", [1, 63, 64, 150])
def test_delta_is_one_triangular_system(length):
    workload, parameters = replace(square(CAUSAL, length), dtype="float64"), fast_weight.Parameters(beta=0.9)
    given = operands(workload)
    result = run(PROGRAMMER, workload, parameters, given)
    inputs = [tensor.detach().requires_grad_() for tensor in given.inputs]
    heads = [written_at_once(inputs[0][1, h], *(tensor[1, h // 2] for tensor in inputs[1:]), 0.9) for h in range(4)]
    right = torch.stack(heads)
    torch.testing.assert_close(result.output[1], right)
    for ours, theirs in zip(result.gradients, torch.autograd.grad(right, inputs, given.upstream[1]), strict=True):
        torch.testing.assert_close(ours[1], theirs[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mask", ["causal", "causal+padding:0.5"])
@pytest.mark.parametrize("lengths", [(150, 150), (30, 170), (170, 30)])
@pytest.mark.parametrize("parameters", [DELTA, SUM], ids=str)
def test_fast_weights_compute_their_formula(parameters, lengths, mask, dtype):
    workload = replace(BASE, mask=mask, query_length=lengths[0], key_length=lengths[1], dtype=dtype, value_head_dim=5)
    parametrised.check(PROGRAMMER, workload, parameters)


@pytest.mark.parametrize("mask", ["causal", "causal+padding:0.5"])
def test_the_sum_of_outer_products_is_causal_linear_attention(mask):
    workload = replace(BASE, mask=mask)
    given = operands(workload)
    ours, theirs = run(PROGRAMMER, workload, SUM, given), run(VARIANT, workload, NONE, given)
    torch.testing.assert_close(ours.output, theirs.output)
    for first, second in zip(ours.gradients, theirs.gradients, strict=True):
        torch.testing.assert_close(first, second)
    heads = [recurrent(given.query[1, h].detach(), given.key[1, h // 2], given.value[1, h // 2]) for h in range(4)]
    if mask == "causal":
        torch.testing.assert_close(ours.output[1], torch.stack(heads), rtol=1e-4, atol=1e-5)


def test_a_key_that_comes_again_replaces_what_it_wrote():
    workload = replace(CAUSAL, head_dim=1, value_head_dim=8)  # with a single channel all keys are one
    given = operands(workload)
    values = given.value.repeat_interleave(2, dim=1)
    output = run(PROGRAMMER, workload, fast_weight.Parameters(beta=1.0), given).output
    torch.testing.assert_close(output, values)
    half = run(PROGRAMMER, workload, DELTA, given).output
    torch.testing.assert_close(half[:, :, 1], values[:, :, 0] / 4 + values[:, :, 1] / 2)


def test_a_prefix_of_rows_can_be_asked_of_the_formula():
    inputs = [tensor.detach().double() for tensor in operands(CAUSAL).inputs]
    some, every = (
        PROGRAMMER.reference(*inputs, workload=CAUSAL, parameters=DELTA, rows=rows)
        for rows in (torch.tensor([5, 0, 70, 70]), torch.arange(150))
    )
    assert torch.equal(some, every[:, :, [5, 0, 70, 70]])


def test_padding_is_never_read_by_the_delta_rule():
    workload = replace(BASE, mask="causal+padding:0.5")
    given = operands(workload)
    kept = Pattern.of(workload).kept.tolist()
    clean, dirty = (run(PROGRAMMER, workload, DELTA, some) for some in (given, parametrised.poisoned(given, kept)))
    assert torch.equal(clean.output, dirty.output)
    for first, second in zip(clean.gradients, dirty.gradients, strict=True):
        assert torch.equal(first, second)


def test_memory_of_the_delta_rule_is_linear_in_training():
    workload = Workload(heads=1, kv_heads=1, head_dim=16, mode="fwd_bwd", mask="causal")
    assert parametrised.memory_exponent(PROGRAMMER, workload, DELTA, (4096, 8192, 16384)) <= 1.1


def test_flops_of_fast_weights():
    one = replace(square(CAUSAL, 64), batch=1, heads=1, kv_heads=1, mode="fwd", value_head_dim=4)
    pairs, state = 64 * 64, 64 * 8 * 4
    assert fast_weight.flops(one, DELTA) == 2 * (pairs * (8 + 4 // 2) + pairs * (8 + 4) + 3 * state)
    assert fast_weight.flops(one, SUM) == _linear.flops(one, NONE)
    assert fast_weight.flops(square(one, 6400), DELTA) == 100 * fast_weight.flops(one, DELTA)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mask": "full"}, "add 'causal'"),
        ({"mask": "padding:0.5"}, "add 'causal'"),
        ({"mask": "document:2+causal"}, "one state"),
        ({"mask": "window:9"}, "one state"),
        ({"mask": "softcap:2+causal"}, "score"),
        ({"mask": "causal", "scale": 0.3}, "scale"),
    ],
)
def test_what_fast_weights_refuse(changes, word):
    (reason,) = PROGRAMMER.obstacles(replace(BASE, **changes), DELTA)
    assert word in reason


@pytest.mark.parametrize("wrong", [{"rule": "add"}, {"beta": 0.0}, {"beta": 1.5}])
def test_parameters_that_mean_nothing(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        fast_weight.Parameters(**wrong)
