"""The package's LSH attention: its own formula, that it is reproducible here, and where the package is wrong."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.measure.call import Call
from tests.variants.parametrised import check, operands, run, strided
from variants import reformer_pytorch
from variants._contract import Workload
from variants._mask import Mask
from variants.reformer_pytorch import VARIANT, Parameters

package = pytest.importorskip("reformer_pytorch.reformer_pytorch")


def problem(length=128, **changes):
    usual = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "mode": "fwd_bwd"}
    return Workload(query_length=length, key_length=length, **(usual | changes))


# --- what it computes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize(
    ("length", "parameters"),
    [
        (1, Parameters()),
        (65, Parameters()),
        (128, Parameters()),
        (384, Parameters()),
        (500, Parameters()),
        (200, Parameters(8, 1)),
        (192, Parameters(16, 2)),
        (100, Parameters(1, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_length_has_the_output_and_gradients_of_its_formula(dtype, length, parameters, mask):
    check(VARIANT, problem(length, mask=mask, dtype=dtype, heads=2), parameters)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    check(VARIANT, problem(200, dtype=dtype), Parameters(16, 4))


def test_tensors_need_not_be_contiguous():
    given = operands(problem(128))
    first, second = (run(VARIANT, problem(128), Parameters(16, 4), each) for each in (given, strided(given)))
    torch.testing.assert_close(first.output, second.output)


def test_the_route_is_the_buckets_that_were_used(monkeypatch):
    workload, parameters, used = problem(200), Parameters(16, 4), []
    attention = package.LSHAttention
    monkeypatch.setattr(
        attention,
        "forward",
        lambda *args, forward=attention.forward, **kw: used.append(forward(*args, **kw)) or used[-1],
    )
    given = operands(workload)
    run(VARIANT, workload, parameters, given)
    ((_, _, buckets),) = used
    route = VARIANT.route(given.query, given.key, workload=workload, parameters=parameters)
    assert route.shape == (2, 4, 4, 224)
    own_numbers = torch.arange(4)[:, None] * (224 // 16)  # the package numbers buckets on through the rounds
    assert torch.equal((route + own_numbers).view(8, -1), buckets)


def test_calls_are_seeded_and_leave_the_global_generator_alone():
    workload = problem(256)
    given = operands(workload)
    attend = VARIANT.build(workload, Parameters(16, 2))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    once = attend(*given.inputs)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(once, attend(*given.inputs))
    other = VARIANT.build(replace(workload, seed=1), Parameters(16, 2))
    assert not torch.equal(once, other(*given.inputs))


def test_rotations_are_no_inputs():
    """Drawn with the workload's seed itself they would be the numbers of whoever draws inputs with it."""
    with reformer_pytorch._seeded(problem(), torch.device("cpu")):
        rotations = torch.randn(1000)
    assert not torch.isin(rotations, torch.randn(1000, generator=torch.Generator().manual_seed(0))).any()


def test_future_values_change_no_bit_of_the_past():
    workload = problem(256, mask="causal")
    given = operands(workload)
    before = run(VARIANT, workload, Parameters(16, 4), given).output
    after = given.fresh(differentiable=True)
    with torch.no_grad():
        after.value[:, :, 100:] = 1e3
    after = run(VARIANT, workload, Parameters(16, 4), after).output
    assert torch.equal(before[:, :, :100], after[:, :, :100])
    assert not torch.equal(before[:, :, 100:], after[:, :, 100:])


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("length", [128, 300])
def test_flops_are_those_that_are_issued(length, mode):
    workload, parameters = problem(length, mode=mode), Parameters(16, 3)
    call = Call(VARIANT.build(workload, parameters), operands(workload), mode)
    prepared = call.prepare()
    with FlopCounterMode(display=False) as counted:
        call.timed()(prepared)
    assert counted.get_total_flops() == VARIANT.flops(workload, parameters)


# --- what it refuses ------------------------------------------------------------------------------------------


def test_it_refuses_what_the_package_cannot_do():
    for changes in ({}, {"mask": "causal"}, {"dtype": "bfloat16"}, {"mode": "fwd", "head_dim": 1}):
        assert VARIANT.obstacles(problem(100, **changes), Parameters()) == []
    for mask in ("window:8", "band:4", "document:2", "alibi", "softcap:5", "padding:0.5"):
        (reason,) = VARIANT.obstacles(problem(mask=mask), Parameters())
        assert Mask.parse(mask).terms & set(reason.replace(":", " ").split())
    for changes, part in (
        ({"key_length": 64}, "128 and 64"),
        ({"value_head_dim": 8}, "8 and 16"),
        ({"scale": 1.0}, "not by 1"),
        ({"head_dim": 1}, "one channel"),
        ({"dtype": "float16", "mask": "causal"}, "only themselves"),
        ({"dtype": "bfloat16", "query_length": 2, "key_length": 2}, "one other position"),
    ):
        (reason,) = VARIANT.obstacles(replace(problem(), **changes), Parameters())
        assert part in reason
    assert VARIANT.obstacles(problem(scale=0.25), Parameters()) == []  # is 1/√16
    assert len(VARIANT.obstacles(problem(), Parameters(0, 0))) == 2


def test_a_missing_package_is_an_obstacle(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (reason,) = VARIANT.obstacles(problem(), Parameters())
    assert "pip install 'attention-bench[packages]'" in reason


# --- where the package is wrong -------------------------------------------------------------------------------


def bare(query, value, **options):
    """The package as it is, on ``(heads, N, D)``."""
    torch.manual_seed(0)
    return package.LSHAttention(**options).eval()(query, value)[0]


def test_its_evaluation_is_random_unless_seeded():
    query, value = torch.randn(2, 1, 128, 16)
    attention = package.LSHAttention(bucket_size=16, n_hashes=2).eval()
    assert not torch.equal(attention(query, value)[0], attention(query, value)[0])


def test_its_rule_against_duplicates_errs_more_the_more_hashes_there_are():
    query, value = torch.randn(2, 16, 512, 16, generator=torch.Generator().manual_seed(0))
    scores = query @ torch.nn.functional.normalize(query, dim=-1).mT / 4
    right = torch.softmax(scores - 1e9 * torch.eye(512), dim=-1) @ value
    errors = {
        allowed: [
            float((bare(query, value, bucket_size=16, n_hashes=n, allow_duplicate_attention=allowed) - right).norm())
            for n in (4, 8, 16)
        ]
        for allowed in (True, False)
    }
    assert errors[True] == sorted(errors[True], reverse=True), "as it ought to be"
    assert errors[False] == sorted(errors[False]), "with more rounds more pairs meet across two of them"
    assert errors[False][-1] > 3 * errors[True][-1]


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", 1e-4, 4e-3), ("bfloat16", 1, 20)])
def test_rows_that_see_only_themselves_are_off(dtype, least, most):
    query, value = torch.randn(2, 1, 128, 16, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    first = bare(query, value, causal=True)[0, 0]
    error = float(((first - value[0, 0]) / value[0, 0]).abs().max())
    assert least < error < most


def test_content_of_padding_moves_its_results():
    query, value = torch.randn(2, 1, 256, 16, generator=torch.Generator().manual_seed(0))
    real = torch.arange(256)[None] < 150
    other = query.clone()
    other[:, 150:] = torch.randn(106, 16)
    results = []
    for padded in (query, other):
        torch.manual_seed(0)
        attention = package.LSHAttention(bucket_size=16, n_hashes=2).eval()
        results.append(attention(padded, value, input_mask=real)[0][:, :150])
    assert not torch.allclose(*results, atol=1e-2)
