"""naive_sdpa is the formula as written; exact attentions agree; issued work is what an independent counter sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.measure import dispatch
from bench.measure.call import Call
from bench.measure.memory import weigh_cpu
from tests.variants.problems import (
    VARIANTS,
    built,
    check_against_own_formula,
    compiles,
    operands,
    refusals,
    run,
    small,
    square,
)
from variants._contract import Workload

MIB = 1024**2


def peak_bytes(name, workload):
    given = operands(workload).fresh(differentiable=workload.mode != "fwd")
    return weigh_cpu(Call(built(name, workload), given, workload.mode)).weight.peak_bytes


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_naive_takes_the_memory_of_two_score_matrices(mask):
    workload = Workload(mask=mask)  # 1×8×1024×64
    by_hand = 2 * workload.batch * workload.heads * workload.query_length**2 * 4
    assert by_hand == 64 * MIB
    assert abs(peak_bytes("naive_sdpa", workload) - by_hand) <= 2 * MIB


def test_naive_takes_no_more_for_rows_that_see_nothing():
    workload = Workload(query_length=1024, key_length=512, mask="causal", heads=4, kv_heads=4)
    assert peak_bytes("naive_sdpa", workload) <= 2 * 4 * 1024 * 512 * 4 * 1.1


@pytest.mark.parametrize("mask", ["full", "causal", "padding:0.6", "document:3+window:20"])
def test_exact_attentions_agree(mask):
    workload = small(mask=mask, dtype="float64")
    names = [name for name in VARIANTS if VARIANTS[name].exact and not refusals(name, workload)]
    assert set(names) >= {"naive_sdpa", "chunked_mha", "sdpa_math", "sdpa_flash", "sdpa_auto"}
    results = [run(name, workload) for name in names]
    for result in results[1:]:
        torch.testing.assert_close(result.output, results[0].output)
        torch.testing.assert_close(result.gradients, results[0].gradients)


@pytest.mark.parametrize("name", ["naive_sdpa", "chunked_mha", "sdpa_math"])
@pytest.mark.parametrize(
    "workload",
    [
        square(512, mask="full"),
        square(600, mask="causal", batch=1),
        small(query_length=300, key_length=700, mask="window:100", kv_heads=4),
        small(mask="full", head_dim=24, value_head_dim=40),
        square(700, mask="document:4"),
        small(mask="alibi+causal"),
    ],
    ids=lambda it: f"{it.mask}-{it.query_length}x{it.key_length}",
)
def test_issued_work_is_what_torch_counts(name, workload):
    variant = VARIANTS[name]
    given = operands(workload).fresh(differentiable=True)
    attend = built(name, workload)
    with FlopCounterMode(display=False) as forward:
        output = attend(*given.inputs)
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad(output, given.inputs, given.upstream)
    counted = {"fwd": forward.get_total_flops(), "bwd": backward.get_total_flops()}
    counted["fwd_bwd"] = counted["fwd"] + counted["bwd"]
    issued = {mode: variant.flops(replace(workload, mode=mode), variant.parameters()) for mode in counted}
    assert issued == counted


def test_naive_issues_every_pair():
    for mask in ("full", "causal"):
        workload = Workload(mask=mask)
        forward = 4 * 8 * 1024**2 * 64
        issued = [
            VARIANTS["naive_sdpa"].flops(replace(workload, mode=mode), None) for mode in ("fwd", "bwd", "fwd_bwd")
        ]
        assert issued == [forward, 2 * forward, 3 * forward]


def test_uniform_is_the_mean_of_what_is_seen():
    workload = square(50, mask="causal", dtype="float64", kv_heads=4)
    _, _, value = given = operands(workload).inputs
    output = built("uniform", workload)(*given)
    torch.testing.assert_close(output, value.cumsum(dim=2) / torch.arange(1, 51)[:, None])
    everything = built("uniform", replace(workload, mask="full"))(*given)
    torch.testing.assert_close(everything, value.mean(dim=2, keepdim=True).expand_as(value))
    assert everything.is_contiguous()


def test_uniform_does_not_drift_over_long_sequences():
    """Differences of running sums in float32 would be off by more than rounding explains."""
    workload = Workload(query_length=50_000, key_length=50_000, heads=1, kv_heads=1, head_dim=2, mask="window:2")
    _, _, value = given = operands(workload).inputs
    value += 1000
    output = built("uniform", workload)(*given)
    torch.testing.assert_close(output[:, :, 1:], (value[:, :, 1:] + value[:, :, :-1]) / 2, rtol=1e-6, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "mask", ["full", "causal", "window:70", "padding:0.6", "alibi+causal", "bigbird:64x2x3", "softcap:20"]
)
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_on_a_gpu(name, mask, dtype, mode):
    workload = square(300, mask=mask, dtype=dtype, mode=mode, head_dim=64, device="cuda")
    if reasons := refusals(name, workload):
        pytest.skip("; ".join(reasons))
    check_against_own_formula(name, workload)
    if not compiles(name):
        call = Call(built(name, workload), operands(workload).fresh(differentiable=mode != "fwd"), mode)
        assert dispatch.fell_back(VARIANTS[name], "cuda", weigh_cpu(call).dispatched) is None
