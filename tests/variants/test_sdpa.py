"""PyTorch's SDPA held to one backend: what it refuses is said before, and what runs is what the name says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from bench.measure import dispatch
from bench.measure.call import Call
from bench.measure.memory import weigh_cpu
from tests.variants.problems import VARIANTS, built, operands, refusals, run, small, square
from variants import _sdpa
from variants._contract import Workload

ON_CPU = ("sdpa_math", "sdpa_flash", "sdpa_auto")


def dispatched(name, workload):
    given = operands(workload).fresh(differentiable=workload.mode != "fwd")
    return weigh_cpu(Call(built(name, workload), given, workload.mode)).dispatched


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("mask", ["full", "causal", "window:9", "padding:0.5", "alibi"])
@pytest.mark.parametrize("lengths", [(100, 100), (40, 72)])
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_no_silent_change_of_kernel(name, dtype, mask, lengths, mode):
    workload = small(dtype=dtype, mask=mask, mode=mode, query_length=lengths[0], key_length=lengths[1])
    assert refusals(name, workload) == []
    seen = dispatched(name, workload)
    assert dispatch.fell_back(VARIANTS[name], "cpu", seen) is None
    is_math = "aten::_scaled_dot_product_attention_math" in seen
    assert is_math == (name == "sdpa_math")
    assert ("aten::_scaled_dot_product_flash_attention_for_cpu" in seen) != is_math


def test_the_claim_is_refuted_by_the_other_kernel():
    for name, other in (("sdpa_flash", "sdpa_math"), ("sdpa_math", "sdpa_flash")):
        seen = dispatched(other, small(mode="fwd"))
        assert dispatch.fell_back(VARIANTS[name], "cpu", seen) is not None


def test_values_wider_than_keys_would_run_the_math_kernel():
    workload = small(value_head_dim=24)
    (reason,) = refusals("sdpa_flash", workload)
    assert "values as wide as keys" in reason
    assert "aten::_scaled_dot_product_attention_math" in dispatched("sdpa_auto", workload)
    assert refusals("sdpa_math", workload) == refusals("sdpa_auto", workload) == []


@pytest.mark.parametrize("name", ["sdpa_efficient", "sdpa_cudnn"])
def test_what_no_cpu_has(name):
    for mask in ("full", "causal", "alibi"):
        (reason,) = refusals(name, small(mask=mask))
        assert "no" in reason
        assert "for a CPU" in reason


@pytest.mark.parametrize("name", [*ON_CPU, "sdpa_efficient", "sdpa_cudnn"])
def test_there_is_no_soft_cap(name):
    assert any("softcap:30: " in reason for reason in refusals(name, small(mask="softcap:30+causal")))


def test_grouped_heads_are_native_in_the_flash_kernel():
    seen = dispatched("sdpa_flash", small(mode="fwd"))
    assert not {"aten::repeat_interleave", "aten::expand"} & set(seen)


@pytest.mark.parametrize("name", ON_CPU)
def test_causal_is_aligned_with_the_last_key(name):
    workload = small(query_length=40, key_length=72, mask="causal", kv_heads=4, mode="fwd")
    query, key, value = operands(workload).inputs
    top_left = scaled_dot_product_attention(query, key, value, is_causal=True)
    ours = built(name, workload)(query, key, value)
    assert not torch.allclose(ours, top_left, atol=0.1)
    torch.testing.assert_close(ours[:, :, -1:], scaled_dot_product_attention(query[:, :, -1:], key, value))


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("mask", ["causal", "alibi+causal", "document:3+window:4"])
def test_rows_that_see_nothing_are_zero_and_no_gradient_is_nan(name, mask):
    workload = small(query_length=72, key_length=40, mask=mask)
    result = run(name, workload)
    assert not result.output[:, :, :32].any()
    assert result.output[:, :, 32:].any()
    assert all(gradient.isfinite().all() for gradient in result.gradients)
    assert not result.gradients[0][:, :, :32].any()


@pytest.mark.parametrize(("length", "block"), [(100, 32), (400, 64), (1000, 256)])
def test_the_flash_kernel_stops_at_the_last_key_of_a_block_of_queries(length, block):
    workload = Workload(query_length=length, key_length=length, mode="fwd")
    full = VARIANTS["sdpa_flash"].flops(workload, None)
    assert full == 4 * 8 * length**2 * 64
    computed = sum(min(i // block * block + block, length) for i in range(length))
    assert VARIANTS["sdpa_flash"].flops(replace(workload, mask="causal"), None) == 4 * 8 * computed * 64
    assert VARIANTS["sdpa_flash"].flops(replace(workload, mask="window:5"), None) == full
    assert VARIANTS["sdpa_math"].flops(replace(workload, mask="causal"), None) == full


def test_the_fused_backward_computes_the_scores_again():
    modes = [Workload(mode=mode) for mode in ("fwd", "bwd", "fwd_bwd")]
    forward, backward, both = (VARIANTS["sdpa_flash"].flops(workload, None) for workload in modes)
    assert (backward, both) == (2.5 * forward, 3.5 * forward)
    forward, backward, both = (VARIANTS["sdpa_math"].flops(workload, None) for workload in modes)
    assert (backward, both) == (2 * forward, 3 * forward)


def test_the_reason_is_what_stands_under_the_heading_of_the_kernel():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at a.cpp:1.)",
        "Mem Efficient attention has been runtime disabled. (Triggered internally at a.cpp:2.)",
        "Flash attention kernel not used because: (Triggered internally at a.cpp:3.)",
        "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got float. (Triggered at a.cpp:4.)",
        "cuDNN attention kernel not used because: (Triggered internally at a.cpp:5.)",
    ]
    why = _sdpa._why(SDPBackend.FLASH_ATTENTION, said)
    assert why == "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got float"
    assert _sdpa._why(SDPBackend.EFFICIENT_ATTENTION, said) == "Mem Efficient attention has been runtime disabled"
    assert _sdpa._why(SDPBackend.CUDNN_ATTENTION, said) == "it does not say why"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mask", ["full", "causal", "window:9", "alibi"])
@pytest.mark.parametrize(
    "changes", [{}, {"kv_heads": 4}, {"value_head_dim": 32}, {"query_length": 40}, {"mode": "fwd"}]
)
def test_on_a_gpu_an_obstacle_is_what_the_pinned_kernel_would_raise_for(name, dtype, mask, changes):
    workload = small(**({"device": "cuda", "dtype": dtype, "mask": mask, "head_dim": 64} | changes))
    reasons = refusals(name, workload)
    try:
        seen = dispatched(name, workload)
    except RuntimeError:
        assert reasons
    else:
        assert reasons or dispatch.fell_back(VARIANTS[name], "cuda", seen) is None


def test_every_length_has_some_kernel():
    for length in (1, 3):
        for mask in ("full", "causal"):
            assert run("sdpa_flash", square(length, mask=mask)).output.isfinite().all()
