"""What ran is told by its operators, in order; a variant that ran something else fell back."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from bench.measure import compilation, dispatch
from bench.measure.call import Call, Operands
from bench.measure.compilation import Compilation
from bench.measure.memory import weigh_cpu
from tests.bench.attentions import small, variant
from variants._contract import Kernels

FLASH = Kernels(required=("flash_attention",), forbidden=("aten::bmm", "softmax$"))


def events(*names):
    return [SimpleNamespace(name=lambda name=name: name) for name in names]


def ran(attend, workload=None):
    workload = workload or small()
    return weigh_cpu(Call(attend, Operands.of(workload).fresh(differentiable=workload.mode != "fwd"), workload.mode))


def sdpa(backend):
    def attend(query, key, value):
        with torch.nn.attention.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    return attend


def test_names_come_once_in_order_of_first_use():
    listed = dispatch.names(
        events("aten::mm", dispatch.MEMORY_EVENT, "aten::exp", "aten::mm", dispatch.MARK, "aten::sum")
    )
    assert listed == ["aten::mm", "aten::exp", "aten::sum"]


def test_the_engine_is_not_told_beside_the_node_that_it_runs():
    listed = dispatch.names(events("autograd::engine::evaluate_function: BmmBackward0", "BmmBackward0"))
    assert listed == ["BmmBackward0"]


@pytest.mark.parametrize(
    ("dispatched", "expected"),
    [
        (["aten::_flash_attention_for_cpu"], None),
        (["aten::_flash_attention_for_cpu", "aten::softmax_backward"], None),
        (["aten::_flash_attention_for_cpu", "aten::bmm"], "expected nothing like 'aten::bmm' to run, saw 'aten::bmm'"),
        (["aten::mm", "aten::exp"], "expected something like 'flash_attention' to run, saw aten::mm, aten::exp"),
        ([], "expected something like 'flash_attention' to run, saw nothing"),
    ],
)
def test_patterns(dispatched, expected):
    assert dispatch.objection(FLASH, dispatched) == expected


def test_patterns_are_those_of_the_device():
    it = variant(kernels={"cuda": FLASH})
    assert dispatch.fell_back(it, "cpu", ["aten::bmm"]) is None
    assert dispatch.fell_back(it, "cuda", ["aten::bmm"]) is not None
    assert dispatch.fell_back(it, "cuda:1", ["aten::bmm"]) is not None


def test_names_are_stored_short_and_without_hashes():
    raw = ["## Call CompiledFxGraph fmjvubdxm2idrt56 ##", "## Call CompiledFxGraph other ##", "k" * 500]
    assert dispatch.readable(raw) == ["CompiledFxGraph", "k" * 200]


@pytest.mark.parametrize("mode", ["fwd", "bwd"])
def test_flash_and_math_are_told_apart(mode):
    workload = small(mode=mode)
    flash = ran(sdpa(torch.nn.attention.SDPBackend.FLASH_ATTENTION), workload).dispatched
    math = ran(sdpa(torch.nn.attention.SDPBackend.MATH), workload).dispatched
    assert dispatch.objection(FLASH, flash) is None
    assert dispatch.objection(FLASH, math) is not None
    assert any("Backward" in name for name in flash) == (mode == "bwd")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, on its first compilation
def test_compiled_code_is_seen_as_such_and_its_compilation_counted():
    compiled = torch.compile(lambda query, key, value: (query + key) * value, fullgraph=True)
    compilation.restart()
    ran(compiled)
    assert compilation.so_far().seconds > 0
    assert (compilation.so_far().graphs, compilation.so_far().graph_breaks) == (1, 0)
    dispatched = ran(compiled).dispatched
    assert "CompiledFxGraph" in dispatch.readable(dispatched)
    assert not any(name.startswith("aten::mul") for name in dispatched)
    compilation.restart()
    ran(compiled)
    assert compilation.so_far() == Compilation(0, 0)
    torch._dynamo.reset()  # as a variant may, which sets the compiler's counters back
    ran(compiled)
    assert compilation.so_far().seconds > 0
    assert compilation.so_far().cache_hits == 1


def test_nothing_is_compiled_without_the_compiler(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    compilation.restart()
    assert compilation.so_far() == Compilation(0, 0)
