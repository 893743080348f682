"""Each variant's call through pytest-benchmark: ``nox -s perf``. Compare rows of one run; never assert a time."""

from __future__ import annotations

import pytest
import torch

import variants
from variants._contract import Workload

VARIANTS = variants.find()
LENGTH = 1024

pytestmark = pytest.mark.perf


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_variant(benchmark, name, mask, mode):
    variant = VARIANTS[name]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    workload = Workload(query_length=LENGTH, key_length=LENGTH, mask=mask, mode=mode, device=device)
    parameters = variant.parameters()
    if reasons := variant.obstacles(workload, parameters):
        pytest.skip("; ".join(reasons))
    benchmark.group = f"{mask} {mode} N={LENGTH} {device}"
    call = _call(variant.build(workload, parameters), workload)
    output = benchmark(call)
    assert output.shape == (workload.batch, workload.heads, LENGTH, workload.value_dim)
    assert torch.isfinite(output).all()


def _call(attend, workload):
    generator = torch.Generator().manual_seed(0)
    shape = (workload.batch, workload.heads, LENGTH, workload.head_dim)
    query, key, value, upstream = (torch.randn(shape, generator=generator).to(workload.device) for _ in range(4))
    training = workload.mode != "fwd"
    inputs = [tensor.requires_grad_(training) for tensor in (query, key, value)]

    def call():
        with torch.set_grad_enabled(training):
            output = attend(*inputs)
        if training:
            torch.autograd.grad(output, inputs, upstream, allow_unused=True)
        if workload.device == "cuda":
            torch.cuda.synchronize()
        return output.detach()

    return call
