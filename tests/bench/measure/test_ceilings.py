"""What a machine can do at best, how much work a case is, and the share that it reaches."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from bench.measure import ceilings, work
from bench.measure.ceilings import measure_ceilings
from tests.bench.attentions import dense, small
from variants._contract import Workload
from variants._pattern import Pattern

# --- ceilings ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ticking(monkeypatch):
    """Every call takes as long as it is told to; the clock stands still otherwise."""
    now = [0.0]
    monkeypatch.setattr(ceilings, "perf_counter", lambda: now[0])
    return now


def test_a_product_is_made_larger_until_it_takes_long_enough(ticking, monkeypatch):
    sides = []

    def product(left, right, *, out):
        assert left.dtype == right.dtype == out.dtype == torch.float32
        sides.append(len(left))
        ticking[0] += 2 * len(left) ** 3 / 1e11

    monkeypatch.setattr(ceilings.torch, "mm", product)
    assert ceilings._matmul_rate("cpu", "float32") == pytest.approx(1e11)
    assert sorted(set(sides)) == [128, 256, 512, 1024]  # 2 · 1024³ / 10¹¹ is 21 ms


def test_a_small_product_that_was_held_up_is_not_the_ceiling(ticking, monkeypatch):
    def product(left, right, *, out):
        ticking[0] += 0.03 if len(left) < 1024 else 0.02

    monkeypatch.setattr(ceilings.torch, "mm", product)
    assert ceilings._matmul_rate("cpu", "float32") == pytest.approx(2 * 1024**3 / 0.02)


def test_the_best_repetition_and_the_best_size_count(ticking, monkeypatch):
    seconds = itertools.cycle([9.0, 0.5, 0.3, 0.1, 0.7, 0.4])  # the first one warms up
    monkeypatch.setattr(
        ceilings.torch, "mm", lambda left, right, *, out: ticking.__setitem__(0, ticking[0] + next(seconds))
    )
    assert ceilings._matmul_rate("cpu", "float32") == pytest.approx(2 * 1024**3 / 0.1)


def test_a_copy_counts_what_it_reads_and_what_it_writes(ticking, monkeypatch):
    def copy(target, source):
        ticking[0] += len(source) / 1e9
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    assert ceilings._copy_rate("cpu", 4_000_000) == pytest.approx(2e9)


def test_cuda_is_waited_for(ticking, monkeypatch):
    waits = []
    monkeypatch.setattr(ceilings.torch.cuda, "synchronize", lambda: waits.append(None))
    ceilings._seconds("cuda", lambda: waits.append("call"), 3)
    assert waits == [None, "call", "call", "call", None]


def test_there_is_a_rate_per_dtype_and_size(monkeypatch):
    monkeypatch.setattr(ceilings, "_matmul_rate", lambda device, dtype: 1.0)
    monkeypatch.setattr(ceilings, "_copy_rate", lambda device, size: float(size))
    assert measure_ceilings("cpu", ["float32", "bfloat16"]) == {
        "matmul_flops_per_second:float32": 1.0,
        "matmul_flops_per_second:bfloat16": 1.0,
        "copy_bytes_per_second": 256 * 2**20,
        **{f"copy_bytes_per_second:{2**power}": 2**power for power in (18, 20, 22, 24, 26)},
    }
    assert set(measure_ceilings("cuda", ["float32"])) == {"matmul_flops_per_second:float32", "copy_bytes_per_second"}


def test_short_calls_are_repeated_for_a_millisecond(ticking):
    calls = []

    def call():
        calls.append(None)
        ticking[0] += 1e-4

    assert ceilings._quickest("cpu", call) == pytest.approx(1e-4)
    assert len(calls) == 1 + 5 * 10


def test_a_product_that_is_far_too_slow_is_not_made_larger(ticking, monkeypatch):
    sides = []

    def product(left, right, *, out):
        sides.append(len(left))
        ticking[0] += 2 * len(left) ** 3 / 1e8

    monkeypatch.setattr(ceilings.torch, "mm", product)
    assert ceilings._matmul_rate("cpu", "float16") == pytest.approx(1e8)
    assert set(sides) == {128, 256}


# --- work ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "query", "key", "pairs"),
    [
        ("full", 40, 40, 1600),
        ("full", 7, 50, 350),
        ("causal", 40, 40, 820),
        ("causal", 10, 40, 355),
        ("causal", 40, 10, 55),
        ("window:8", 40, 40, 292),
        ("prefix:5", 40, 40, 830),
    ],
)
def test_useful_flops_are_four_per_channel_and_pair(mask, query, key, pairs):
    workload = Workload(batch=3, heads=4, kv_heads=2, query_length=query, key_length=key, head_dim=8, mask=mask)
    assert work.useful_flops(workload) == 4 * 8 * 4 * 3 * pairs
    assert work.useful_flops(replace(workload, value_head_dim=24)) == (2 * 8 + 2 * 24) * 4 * 3 * pairs
    assert work.useful_flops(replace(workload, mode="bwd")) == 10 * 8 * 4 * 3 * pairs
    assert work.useful_flops(replace(workload, mode="fwd_bwd")) == 14 * 8 * 4 * 3 * pairs


def test_document_pairs_are_those_of_the_mask():
    workload = small(mask="document:4")
    allowed, _ = Pattern.of(workload).dense()
    assert work.useful_flops(workload) == 4 * 16 * 2 * int(allowed.sum())


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_useful_flops_of_a_full_mask_are_what_torch_counts(mode):
    """Torch counts the products of a dense attention: two forward, four backward (no recomputation, so 2 not 2.5)."""
    from torch.utils.flop_counter import FlopCounterMode

    workload = small(mode=mode)
    inputs = [
        torch.randn(1, 2, 96, 16, requires_grad=mode != "fwd"),
        torch.randn(1, 2, 96, 16, requires_grad=mode != "fwd"),
        torch.randn(1, 2, 96, 16, requires_grad=mode != "fwd"),
    ]
    with FlopCounterMode(display=False) as counter:
        output = dense(workload)(*inputs)
        if mode != "fwd":
            output.sum().backward()
    counted = counter.get_total_flops()
    forwards = {"fwd": (1, 1), "bwd": (2.5, 3), "fwd_bwd": (3.5, 3)}
    by_convention, by_torch = forwards[mode]
    assert work.useful_flops(workload) / by_convention == counted / by_torch


@pytest.mark.parametrize(
    ("mode", "tensors"),
    [("fwd", 4), ("bwd", 8), ("fwd_bwd", 12)],
)
def test_least_traffic_reads_and_writes_each_tensor_once(mode, tensors):
    assert work.least_traffic_bytes(small(mode=mode)) == tensors * 2 * 96 * 16 * 4
    assert work.least_traffic_bytes(small(mode=mode, dtype="bfloat16")) == tensors * 2 * 96 * 16 * 2


def test_least_traffic_counts_shared_heads_once():
    one = work.least_traffic_bytes(small(heads=4, kv_heads=1))
    assert one == (4 + 1 + 1 + 4) * 96 * 16 * 4


def test_what_a_variant_does_not_use_is_not_read():
    one = 2 * 96 * 16 * 4
    assert work.least_traffic_bytes(small(), {"value"}) == 2 * one
    assert work.least_traffic_bytes(small(mode="bwd"), {"value"}) == 4 * one


USES = frozenset({"query", "key", "value"})

# --- roofline ------------------------------------------------------------------------------------------------------

ROOF = {"matmul_flops_per_second:float32": 1e12, "copy_bytes_per_second": 1e9}


def test_many_operations_per_byte_are_bound_by_compute():
    found = work.roofline(small(), USES, issued_flops=10**10, seconds=0.1, ceilings=ROOF)
    assert found.bound == "compute"
    assert found.fraction == pytest.approx(1e11 / 1e12)


def test_few_operations_per_byte_are_bound_by_memory():
    traffic = work.least_traffic_bytes(small())
    found = work.roofline(small(), USES, issued_flops=1000, seconds=1e-3, ceilings=ROOF)
    assert found.bound == "memory"
    assert found.fraction == pytest.approx(traffic / 1e-3 / 1e9)


def test_a_small_problem_is_held_against_the_cache_that_holds_it():
    traffic = work.least_traffic_bytes(small())  # 49,152 bytes
    cached = {**ROOF, "copy_bytes_per_second:524288": 8e9, "copy_bytes_per_second:4194304": 4e9}
    found = work.roofline(small(), USES, issued_flops=1000, seconds=1e-3, ceilings=cached)
    assert found.fraction == pytest.approx(traffic / 1e-3 / 8e9)
    larger = small(query_length=1200, key_length=1200)
    found = work.roofline(larger, USES, issued_flops=1000, seconds=1e-3, ceilings=cached)
    assert found.fraction == pytest.approx(work.least_traffic_bytes(larger) / 1e-3 / 4e9)


@pytest.mark.parametrize("missing", [*ROOF, None])
def test_without_a_ceiling_there_is_no_fraction(missing):
    known = {name: rate for name, rate in ROOF.items() if name != missing}
    found = work.roofline(small(), USES, issued_flops=1, seconds=1.0, ceilings=known)
    assert (found is None) == (missing is not None)
