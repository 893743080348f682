"""Metrics and probes against dense formulas written here, and against answers that are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bench.fidelity import metrics, probe
from bench.measure import oracle, rows
from bench.measure.call import Operands
from bench.measure.fidelity import fidelity
from bench.measure.oracle import Problem
from tests.bench.attentions import small, weights_of
from variants import bigbird, linformer, nystrom, topk, uniform
from variants._contract import NoParameters

SEES_ALL = torch.ones(1, 1, 1, 1, dtype=torch.bool)


def row(*weights):
    return torch.tensor([[[weights]]], dtype=torch.float64)


EXACT = row(0.4, 0.3, 0.2, 0.1)


def all_seen(tensor):
    return torch.ones_like(tensor, dtype=torch.bool)


def test_of_the_same_weights():
    assert metrics.total_variation(EXACT, EXACT) == 0
    assert metrics.overlap(EXACT, EXACT) == pytest.approx(1)
    assert metrics.top_recall(EXACT, EXACT, all_seen(EXACT), 2) == 1
    assert metrics.spectral_error(EXACT, EXACT) == 0


def test_of_other_weights_by_hand():
    given = row(0.1, 0.5, 0.0, -0.2)
    assert metrics.total_variation(given, EXACT) == pytest.approx((0.3 + 0.2 + 0.2 + 0.3) / 2)
    assert metrics.overlap(given, EXACT) == pytest.approx(0.1 + 0.3)
    assert metrics.mass_recall(given, EXACT) == pytest.approx(0.8)
    assert metrics.density(given, all_seen(EXACT)) == 0.75
    assert metrics.spectral_error(given, EXACT) == pytest.approx(math.sqrt(0.09 + 0.04 + 0.04 + 0.09) / math.sqrt(0.3))
    assert metrics.top_recall(given, EXACT, all_seen(EXACT), 2) == 1  # keys 1 and 0 in both
    assert metrics.top_recall(row(0.4, 0.1, 0.3, 0.2), EXACT, all_seen(EXACT), 2) == 0.5


def test_ties_count_with_their_chance():
    tied = row(0.25, 0.25, 0.25, 0.25)
    assert metrics.top_recall(tied, EXACT, all_seen(EXACT), 1) == pytest.approx(1 / 4)
    assert metrics.top_recall(tied, EXACT, all_seen(EXACT), 2) == pytest.approx(1 / 2)
    assert metrics.top_recall(row(0.5, 0.0, 0.0, 0.0), EXACT, all_seen(EXACT), 2) == pytest.approx((1 + 1 / 3) / 2)


def test_few_keys_in_sight_are_all_that_is_asked_for():
    exact = torch.cat([row(1.0, 0.0, 0.0, 0.0), row(0.0, 0.0, 0.0, 0.0)], dim=2)
    allowed = torch.tensor([[[[True, False, False, False], [False] * 4]]])
    given = torch.cat([row(0.9, 0.0, 0.0, 0.0), row(0.5, 0.5, 0.5, 0.5)], dim=2)
    assert metrics.top_recall(given, exact, allowed, 3) == 1
    assert metrics.total_variation(given, exact) == pytest.approx(0.05)  # a row that sees nothing does not count
    nothing = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    assert metrics.overlap(nothing, nothing) is None
    assert metrics.mass_recall(nothing, nothing) is None


def test_the_spectral_error_is_that_of_the_matrices():
    torch.manual_seed(1)
    exact, given = (
        torch.rand(2, 3, 5, 40, dtype=torch.float64).softmax(-1),
        torch.rand(2, 3, 5, 40, dtype=torch.float64),
    )
    by_svd = torch.linalg.matrix_norm(given - exact, 2) / torch.linalg.matrix_norm(exact, 2)
    assert metrics.spectral_error(given, exact) == pytest.approx(float(by_svd.mean()))


def test_entropy_of_known_rows():
    assert metrics.entropy(row(0.25, 0.25, 0.25, 0.25)).item() == pytest.approx(math.log(4))
    assert metrics.entropy(row(0.0, 3.0, 0.0, -1.0)).item() == 0


# --- V = I ------------------------------------------------------------------------------------------------------------


def attend_exactly(workload):
    return lambda query, key, value: weights_of(workload, query, key) @ value.repeat_interleave(workload.group, 1)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_the_identity_brings_out_the_weights(kv_heads, mask):
    workload = small(heads=4, kv_heads=kv_heads, batch=2, query_length=30, key_length=50, value_head_dim=16, mask=mask)
    query, key, _ = Operands.of(workload).inputs
    probed = probe.by_identity(attend_exactly(workload), query, key, workload=workload)
    torch.testing.assert_close(probed, weights_of(workload, query, key))


@pytest.mark.parametrize(("kv_heads", "channels"), [(4, 16), (2, 16), (1, 4), (4, 2)])
def test_the_gradient_brings_out_the_same_weights_however_many_channels(kv_heads, channels):
    workload = small(heads=4, kv_heads=kv_heads, batch=2, value_head_dim=channels)
    query, key, value = (tensor.double() for tensor in Operands.of(workload).inputs)
    chosen = torch.tensor([0, 5, 17, 40, 95])
    right = weights_of(workload, query, key)

    def output(value):
        return right[:, :, chosen] @ value.repeat_interleave(workload.group, 1)

    found = probe.by_gradient(output, value, rows=5, workload=workload)
    torch.testing.assert_close(found, right[:, :, chosen])


def test_what_mixes_channels_has_no_weights():
    workload = small()
    value = Operands.of(workload).value.double()
    mixing = torch.randn(16, 16, dtype=torch.float64)
    assert probe.by_gradient(lambda value: value[:, :, :3] @ mixing, value, rows=3, workload=workload) is None
    assert probe.by_gradient(lambda value: torch.ones(1, 2, 3, 16), value, rows=3, workload=workload) is None


# --- whole variants ---------------------------------------------------------------------------------------------------


def found_of(variant, parameters, workload, operands=None):
    problem = Problem(variant, workload, parameters)
    operands = operands or Operands.of(workload)
    truth = oracle.truth(problem, operands, rows.sample(workload, 16))
    output = variant.build(workload, parameters)(*operands.inputs)
    return fidelity(problem, truth, output), truth


def test_uniform_is_the_mean_of_the_values():
    workload = small(query_length=128, key_length=128)
    found, truth = found_of(uniform.VARIANT, NoParameters(), workload)
    weights = weights_of(workload, *(tensor.double() for tensor in Operands.of(workload).inputs[:2]))[:, :, truth.rows]
    value = Operands.of(workload).value.double()
    right = weights @ value
    assert found.relative_error == pytest.approx(
        float((value.mean(2, keepdim=True) - right).norm() / right.norm()), rel=1e-5
    )
    assert found.top8_recall == pytest.approx(8 / 128)
    assert found.total_variation == pytest.approx(float((weights - 1 / 128).abs().sum(-1).mean() / 2))
    assert found.density == 1


def test_uniform_under_a_mask_is_uniform_over_what_it_allows():
    found, _ = found_of(uniform.VARIANT, NoParameters(), small(mask="causal"))
    assert found.density == 1
    assert found.mass_recall == pytest.approx(1)


def test_topk_recalls_what_it_is_asked_for():
    workload = small(query_length=128, key_length=128)
    eight, _ = found_of(topk.VARIANT, topk.Parameters(k=8), workload)
    four, _ = found_of(topk.VARIANT, topk.Parameters(k=4), workload)
    assert eight.top8_recall == 1
    assert eight.density == pytest.approx(8 / 128)
    assert four.top8_recall == pytest.approx((4 + 4 * 4 / 124) / 8)  # the rest of its weights are equal: zero
    assert eight.overlap == pytest.approx(eight.mass_recall)


def test_bigbirds_density_is_that_of_its_blocks():
    workload = small(query_length=256, key_length=256)
    parameters = bigbird.Parameters(block=16, global_blocks=2, random_blocks=1)
    found, truth = found_of(bigbird.VARIANT, parameters, workload)
    from variants._mask import BigBird
    from variants._pattern import bigbird_table

    table = bigbird_table(BigBird(16, 2, 1), 256, workload.seed)
    chosen = truth.rows[torch.linspace(0, 15, 16).round().long()]
    assert found.density == pytest.approx(float(table[chosen // 16].double().mean()))


def test_a_matrix_of_low_rank_is_reproduced_by_landmarks():
    """Keys in few groups of neighbours: as many landmarks as groups know all there is to know."""
    workload = small(query_length=128, key_length=128, heads=1, kv_heads=1)
    operands = Operands.of(workload)
    groups = torch.randn(1, 1, 4, 16).repeat_interleave(32, dim=2)
    blocky = replace(operands, query=groups.clone(), key=groups.roll(32, 2).clone())
    close, _ = found_of(nystrom.VARIANT, nystrom.Parameters(landmarks=4, iterations=20), workload, blocky)
    assert close.relative_error < 1e-3
    assert close.total_variation < 1e-3
    pooled = linformer.Parameters(rank=4, projection="pooling")
    also, _ = found_of(linformer.VARIANT, pooled, workload, blocky)
    assert also.total_variation < 1e-6
    random, _ = found_of(nystrom.VARIANT, nystrom.Parameters(landmarks=4, iterations=20), workload)
    assert random.relative_error > 0.1
