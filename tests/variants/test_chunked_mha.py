"""chunked_mha: tiles of any size give the same, hidden ones are skipped, and training memory is linear."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.measure import oracle
from bench.measure.call import Call
from bench.measure.memory import weigh_cpu
from tests.variants.problems import built, operands, run, small, square, truth
from variants.chunked_mha import VARIANT, Parameters

MASKS = ("full", "causal", "window:7", "prefix:9", "document:3+padding:0.5", "bigbird:8x1x1", "softcap:2+alibi+causal")


@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    lengths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    mask=st.sampled_from(MASKS),
)
def test_tiles_of_any_size(sizes, lengths, mask):
    workload = small(query_length=lengths[0], key_length=lengths[1], mask=mask, head_dim=8, dtype="float64")
    attend = VARIANT.build(workload, Parameters(*sizes))
    result = Call(attend, operands(workload).fresh(differentiable=True), "fwd_bwd").whole()
    right = truth("chunked_mha", workload)
    for agreement in (oracle.judge_output(right, result.output), oracle.judge_gradients(right, result.gradients)):
        assert agreement.holds, str(agreement)


def test_gradients_agree_with_finite_differences():
    workload = small(query_length=7, key_length=9, mask="softcap:2+alibi+causal", head_dim=3, dtype="float64", batch=1)
    attend = VARIANT.build(workload, Parameters(query_chunk=3, key_chunk=4))
    inputs = operands(workload).fresh(differentiable=True).inputs
    assert torch.autograd.gradcheck(attend, inputs)


@pytest.mark.parametrize(
    ("mask", "share"), [("causal", 0.6), ("window:64", 0.2), ("document:16", 0.5), ("bigbird:64x2x1", 0.55)]
)
def test_hidden_tiles_are_not_computed(mask, share):
    full, masked = square(2048), square(2048, mask=mask)
    small_tiles = Parameters(query_chunk=64, key_chunk=64)
    assert VARIANT.flops(masked, small_tiles) < share * VARIANT.flops(full, small_tiles)
    computed = 0

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            nonlocal computed
            computed += function in (torch.Tensor.__matmul__, torch.Tensor.matmul)
            return function(*arguments, **(keywords or {}))

    workload = square(512, mask=mask, heads=1, kv_heads=1, batch=1, mode="fwd")
    attend, given_tensors = VARIANT.build(workload, small_tiles), operands(workload).inputs
    with Counting():
        attend(*given_tensors)
    pairs = VARIANT.flops(workload, small_tiles) // (2 * 2 * workload.head_dim)
    assert computed == 2 * pairs // 64**2


def peak_bytes(name, workload):
    given_tensors = operands(workload).fresh(differentiable=workload.mode != "fwd")
    return weigh_cpu(Call(built(name, workload), given_tensors, workload.mode)).weight.peak_bytes


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_memory_is_linear_in_the_length(mode):
    peaks = [
        peak_bytes("chunked_mha", square(length, batch=1, heads=2, kv_heads=2, mode=mode, mask="causal"))
        for length in (2048, 4096)
    ]
    assert math.log2(peaks[1] / peaks[0]) < 1.1


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_memory_is_not_far_from_that_of_the_fused_kernel(mode):
    workload = square(1024, batch=1, heads=8, kv_heads=8, head_dim=64, mode=mode)
    assert peak_bytes("chunked_mha", workload) < 4 * peak_bytes("sdpa_flash", workload)


def test_grouped_heads_are_not_expanded():
    shared, own = (
        peak_bytes("chunked_mha", square(2048, batch=1, heads=8, kv_heads=kv_heads, head_dim=64, mode="fwd"))
        for kv_heads in (1, 8)
    )
    assert shared <= own


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_accumulates_in_float32(dtype):
    """Its error is that of rounding the result once, far below that of the formula in half precision."""
    workload = square(1500, batch=1, heads=1, kv_heads=1, dtype=dtype, mode="fwd")
    right = truth("chunked_mha", workload)
    error = (run("chunked_mha", workload).output.double() - right.output).abs().max()
    assert error <= torch.finfo(getattr(torch, dtype)).eps * right.output.abs().max()
    assert error < (run("naive_sdpa", workload).output.double() - right.output).abs().max()


def test_chunks_have_a_size():
    assert VARIANT.obstacles(small(), Parameters()) == []
    assert "query_chunk must be at least 1" in VARIANT.obstacles(small(), Parameters(query_chunk=0))[0]
    assert "key_chunk must be at least 1" in VARIANT.obstacles(small(), Parameters(key_chunk=-2))[0]
