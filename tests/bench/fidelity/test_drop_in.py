from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.fidelity import classifier, drop_in, encoder, rollout
from bench.fidelity.trial import TrialCase
from tests.bench.attentions import variant
from tests.bench.extras import needs_encoder, needs_news
from variants import sdpa_math, uniform
from variants._contract import NoParameters


def replaced(how, length=24):
    torch.set_num_threads(1)
    workload = drop_in.workload(length=length, seed=0, device="cpu")
    case = TrialCase(kind="drop_in", task="news", variant="it", workload=workload, options={"documents": 40})
    return drop_in.replaced(case, how, NoParameters(), told=lambda stage: None)


@needs_encoder
@needs_news
def test_exact_attention_changes_nothing():
    found = replaced(sdpa_math.VARIANT)
    assert found.documents == 40
    assert (found.cosine, found.least_cosine, found.rank_correlation) == pytest.approx((1, 1, 1), abs=1e-5)
    assert found.neighbours_kept == 1
    assert found.accuracy == found.exact_accuracy == found.moved_accuracy
    inside = found.attention
    assert (inside.rollout_total_variation, inside.rollout_top10_kept) == pytest.approx((0, 1), abs=1e-3)
    assert inside.entropy == pytest.approx(inside.exact_entropy, abs=1e-4)


@needs_encoder
@needs_news
def test_the_mean_of_the_values_loses_a_lot():
    found = replaced(uniform.VARIANT)
    assert found.cosine < 0.8
    assert found.least_cosine < found.cosine
    assert found.neighbours_kept < 0.8
    assert found.attention.entropy == pytest.approx(np.log(24), rel=1e-4)
    assert np.allclose(found.attention.map, 1 / 24, atol=1e-4)
    assert found.attention.tokens[0] == "[CLS]"


@needs_encoder
@needs_news
def test_what_is_not_finite_is_refused():
    broken = variant(lambda workload, parameters: lambda query, key, value: value * float("inf"))
    with pytest.raises(ValueError, match="not finite"):
        replaced(broken)


@needs_encoder
@needs_news
def test_weights_inside_are_those_of_the_layers():
    workload = drop_in.workload(length=12, seed=0, device="cpu")
    tokens, _ = drop_in._documents(40, 12, 0)
    found = drop_in.weights_in(tokens[:8], encoder.exact_attention, workload)
    seen = {}
    with torch.no_grad():
        encoder.load()(tokens[:8], watch=lambda layer, *triple: seen.__setitem__(layer, triple))
    query, key, _ = seen[4]
    torch.testing.assert_close(found[4], torch.softmax(query @ key.mT / 32**0.5, -1), atol=1e-5, rtol=1e-4)


def test_rollout_by_hand():
    first = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    second = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])
    rolled = rollout.of(torch.stack([first, second]))
    mixed = [(np.eye(2) + np.array(weights)) / 2 for weights in ([[1, 0], [0.5, 0.5]], [[0, 1], [0, 1]])]
    assert np.allclose(rolled[0].numpy(), mixed[1] @ mixed[0])
    assert rollout.compared(rolled, rolled) == (1, 0)
    assert rollout.mean_distance(torch.tensor([[0.0, 1.0], [0.5, 0.5]])) == pytest.approx(0.75)


@needs_encoder
@needs_news
def test_the_classifier_finds_what_is_there_and_nothing_else():
    draw = np.random.default_rng(0)
    topics = [["a", "b"][index % 2] for index in range(80)]
    clear = draw.normal(size=(80, 8)) * 0.1 + np.array([[index % 2] * 8 for index in range(80)])
    noise = draw.normal(size=(80, 8))
    own, moved, exact = classifier.judged(noise, clear, topics)
    assert exact.accuracy == [1.0] * classifier.SEEDS
    assert np.mean(own.accuracy) < 0.75
    assert np.mean(moved.accuracy) < 0.75
