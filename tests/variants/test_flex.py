"""Compiled FlexAttention: never the uncompiled path, and only where its compiler and kernels can work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.measure import dispatch
from bench.measure.call import Call
from bench.measure.memory import weigh_cpu
from tests.variants.problems import VARIANTS, operands, refusals, small, square
from variants import _flex, flex
from variants._contract import Workload
from variants._pattern import Pattern

UNCOMPILED = ["aten::matmul", "aten::bmm", "aten::softmax", "aten::_softmax"]


def test_the_compiled_graph_runs_and_nothing_else():
    workload = square(130, mask="window:20", mode="fwd", heads=2, batch=1)
    attend = flex.VARIANT.build(workload, None)
    given = operands(workload).fresh(differentiable=True)  # it never asks for gradients itself
    with torch.enable_grad():
        assert not attend(*given.inputs).requires_grad
    profiled = weigh_cpu(Call(attend, given, "fwd"))
    assert dispatch.fell_back(flex.VARIANT, "cpu", profiled.dispatched) is None
    assert not set(UNCOMPILED) & set(profiled.dispatched)
    scores = 2 * 130 * 130 * 4
    assert profiled.weight.peak_bytes - profiled.weight.output_bytes < scores * 2


def test_many_shapes_in_one_process_never_reach_the_limit_of_recompilation(monkeypatch):
    """After some recompilations of one function the unfused path would run, in silence."""
    compiled = []

    def compile_nothing(function, **options):
        compiled.append(options)
        return lambda query, key, value: query

    resets = []
    monkeypatch.setattr(torch, "compile", compile_nothing)
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(len(compiled)))
    for head_dim in range(16, 32):
        flex.VARIANT.build(small(head_dim=head_dim, mode="fwd"), None)
    assert compiled == 16 * [{"fullgraph": True, "dynamic": False}]
    assert resets == list(range(16))


def objection(*seen, device="cpu"):
    return dispatch.fell_back(flex.VARIANT, device, seen)


def test_an_uncompiled_path_is_seen():
    graph, kernel = "## Call CompiledFxGraph abc ##", "triton_tem_fused_flex_attention_0"
    assert objection(graph, "aten::empty") is None
    assert objection("aten::empty") is not None
    assert objection(kernel, device="cuda") is None
    assert objection("triton_poi_fused_add_0", device="cuda") is not None
    for name in ("aten::bmm", "aten::_softmax", "aten::_scaled_dot_product_attention_math"):
        assert objection(graph, name) is not None
        assert objection(kernel, name, device="cuda") is not None


def test_what_a_cpu_cannot():
    for mode in ("bwd", "fwd_bwd"):
        assert refusals("flex", small(mode=mode)) == ["FlexAttention has no backward on a CPU"]
    assert refusals("flex", small(mode="fwd", dtype="float64")) == ["compiled FlexAttention has no float64 kernel"]
    for dtype in ("float32", "float16", "bfloat16"):
        assert refusals("flex", small(mode="fwd", dtype=dtype, mask="softcap:3+alibi+causal")) == []


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    (reason,) = refusals("flex", small(mode="fwd"))
    assert "no compiler 'no-such-compiler'" in reason
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    (reason,) = refusals("flex", small(mode="fwd"))
    assert "set CXX" in reason


def test_a_cpu_without_wide_vectors(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    (reason,) = refusals("flex", small(mode="fwd"))
    assert "needs an x86 CPU with AVX2" in reason


def test_what_cuda_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert refusals("flex", small(device="cuda")) == []
    assert "from 16" in refusals("flex", small(device="cuda", head_dim=8))[0]
    assert "from 16" in refusals("flex", small(device="cuda", value_head_dim=8))[0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in refusals("flex", small(device="cuda"))[0]


@pytest.mark.parametrize(
    ("mask", "mode", "device", "size"),
    [
        ("causal", "fwd", "cpu", 128),
        ("bigbird:10x1x1", "fwd", "cpu", 10),
        ("bigbird:64x2x3", "fwd", "cuda", 64),
        ("bigbird:64x2x3", "fwd_bwd", "cuda", 128),
        ("bigbird:256x2x3", "bwd", "cuda", 256),
        ("bigbird:10x1x1", "fwd", "cuda", 128),
    ],
)
def test_blocks_are_such_that_tiles_divide_them(mask, mode, device, size):
    assert _flex.block_size(Pattern.of(small(mask=mask, mode=mode, device=device), "cpu")) == size


def test_issued_work_is_that_of_the_blocks():
    workload = Workload(mode="fwd", query_length=1024, key_length=1024)
    full = flex.VARIANT.flops(workload, None)
    assert full == 4 * 8 * 1024**2 * 64
    causal = flex.VARIANT.flops(replace(workload, mask="causal"), None)
    assert causal == full * (8 * 9 / 2) / 64
    assert flex.VARIANT.flops(replace(workload, mask="window:128"), None) == full * 15 / 64
    assert flex.VARIANT.flops(replace(workload, mode="fwd_bwd"), None) == 3.5 * full
    odd = flex.VARIANT.flops(replace(workload, query_length=1000, key_length=900, value_head_dim=32), None)
    assert odd == 2 * 8 * 1000 * 900 * (64 + 32)


def test_it_shares_its_kernels_with_every_other_flex():
    for variant in VARIANTS.values():
        if variant.name.startswith("flex"):
            assert variant.kernels is _flex.KERNELS
