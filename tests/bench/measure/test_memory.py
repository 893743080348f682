"""A call weighs what a hand count says, and what will not fit is known before it runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.measure import dispatch, prediction
from bench.measure.call import Call, Operands
from bench.measure.memory import Weight, weigh_cpu
from bench.measure.oracle import Problem
from bench.measure.prediction import extrapolated, predict, predicted_peak_bytes
from tests.bench.attentions import dense, small, variant
from variants._contract import Complexity, NoParameters, Workload

MIB = 2**20


def weigh(build, workload):
    operands = Operands.of(workload).fresh(differentiable=workload.mode != "fwd")
    return weigh_cpu(Call(build(workload, None), operands, workload.mode)).weight


def naive(workload, _parameters):
    """softmax((q/√d)kᵀ)v as written."""

    def attend(query, key, value):
        scaled = query * workload.softmax_scale
        scores = scaled @ key.mT
        del scaled
        return torch.softmax(scores, dim=-1) @ value

    return attend


def test_scores_and_weights_are_64_mib():
    weight = weigh(naive, Workload(query_length=1024, key_length=1024))
    assert weight.peak_bytes == pytest.approx(64 * MIB, abs=2 * MIB)
    assert weight.output_bytes == 2 * MIB
    assert weight.saved_bytes is None
    assert weight.workspace_bytes == weight.peak_bytes - 2 * MIB


def test_what_is_freed_at_once_is_seen():
    def build(_workload, _parameters):
        def attend(query, key, value):
            torch.empty(5 * MIB, dtype=torch.uint8)
            return query.clone()

        return attend

    weight = weigh(build, small())
    assert weight.peak_bytes == 5 * MIB
    assert weight.output_bytes == 2 * 96 * 16 * 4


@pytest.mark.parametrize("mode", ["bwd", "fwd_bwd"])
def test_what_is_kept_for_the_backward_is_told_apart(mode):
    """The weights are kept, H · N² floats, and queries that were scaled; the output itself is no part of it."""
    weight = weigh(naive, small(query_length=256, key_length=256, mode=mode))
    weights, tensor = 2 * 256 * 256 * 4, 2 * 256 * 16 * 4
    assert weight.output_bytes == tensor
    assert weight.saved_bytes == pytest.approx(weights + tensor, abs=64)
    assert weight.peak_bytes == weight.output_bytes + weight.saved_bytes + weight.workspace_bytes
    # the gradient of the weights, then of the scores, beside gradients of the inputs
    assert weights < weight.workspace_bytes < 3 * weights


def test_a_call_weighs_the_same_each_time():
    workload = small(mode="fwd_bwd", mask="causal")
    assert len({weigh(dense, workload) for _ in range(3)}) == 1


def test_parts_add_up_to_the_peak():
    assert Weight.of(100, output=10, held=30) == Weight(100, 10, 20, 70)
    assert Weight.of(100, output=10, held=None, reserved=200) == Weight(100, 10, None, 90, 200)
    assert Weight.of(100, output=10, held=4) == Weight(100, 10, 0, 90)


# --- prediction ----------------------------------------------------------------------------------------------------


def test_a_polynomial_of_second_degree_is_hit_exactly():
    def peak(length):
        return 7 + 5 * length + 3 * length**2

    assert extrapolated([128, 256, 512], [peak(128), peak(256), peak(512)], 2048) == pytest.approx(peak(2048))


def test_points_that_bend_downwards_are_continued_by_a_line():
    assert extrapolated([1, 2, 4], [10, 30, 40], 8) == 60


def test_batch_and_length_are_extrapolated_together():
    seen = []

    def peak(workload):
        seen.append((workload.batch, workload.query_length, workload.key_length))
        length = workload.key_length
        return 1000 + length**2 + workload.batch * (7 * length + 3 * length**2)

    workload = small(batch=16, query_length=8192, key_length=8192)
    assert predict(workload, peak) == peak(workload)
    assert seen[:6] == [(batch, length, length) for batch in (5, 8) for length in (1024, 2048, 4096)]


@pytest.mark.parametrize(("query", "key"), [(1, 65536), (65536, 1), (3000, 48000), (10_007, 10_007)])
def test_lengths_shrink_together_and_keep_at_least_one(query, key):
    def peak(workload):
        assert 1 <= workload.query_length <= query
        assert 1 <= workload.key_length <= key
        assert (workload.query_length == workload.key_length) == (query == key)
        return 10 + workload.query_length * workload.key_length

    workload = small(query_length=query, key_length=key)
    assert predict(workload, peak) == pytest.approx(10 + query * key, rel=0.05)


def test_there_is_no_prediction_from_nothing_smaller():
    assert predict(small(), lambda _: 1) is None


def chunked(workload, _parameters):
    """Linear memory: chunks of 1000 queries, once there are so many."""

    def attend(query, key, value):
        parts = [torch.softmax(part @ key.mT, dim=-1) @ value for part in query.split(1000, dim=2)]
        return torch.cat(parts, dim=2)

    return attend


@pytest.mark.parametrize(("build", "length", "mode"), [(naive, 4096, "fwd_bwd"), (chunked, 8192, "fwd")])
def test_a_prediction_above_64_mib_is_within_a_tenth(build, length, mode):
    workload = Workload(heads=2, kv_heads=2, query_length=length, key_length=length, head_dim=16, mode=mode)
    problem = Problem(variant(build), workload, NoParameters())
    measured = weigh(build, workload).peak_bytes
    assert measured > 64 * MIB
    assert predicted_peak_bytes(problem, weigh_cpu) == pytest.approx(measured, rel=0.1)


def test_a_variant_that_cannot_run_smaller_is_not_predicted():
    def build(workload, _parameters):
        raise ValueError(f"not for {workload.key_length}")

    problem = Problem(variant(build), small(query_length=4096, key_length=4096), NoParameters())
    assert predicted_peak_bytes(problem, weigh_cpu) is None


def test_only_what_could_matter_is_probed():
    quadratic, linear = variant(), variant(complexity=Complexity(1, 1))
    workload = Workload(query_length=16384, key_length=16384)
    assert prediction.could_matter(quadratic, workload, 64 * 2**30)
    assert not prediction.could_matter(linear, workload, 64 * 2**30)
    assert not prediction.could_matter(quadratic, replace(workload, query_length=1024, key_length=1024), 64 * 2**30)
    assert prediction.could_matter(linear, workload, 2**30)


def test_the_running_sum_counts_from_the_events_alone():
    def event(name, size=0):
        return SimpleNamespace(name=lambda: name, nbytes=lambda: size)

    from bench.measure.memory import _course

    allocations = [event(dispatch.MEMORY_EVENT, size) for size in (10, 20, -20, 5, -5)]
    assert _course([*allocations[:3], event(dispatch.MARK), *allocations[3:], allocations[0]]) == (30, 10, 20)
