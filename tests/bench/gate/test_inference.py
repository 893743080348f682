from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.gate import inference
from bench.gate.inference import Mean


def test_few_values_are_an_ordinary_t_test():
    values = [0.1, 0.2, 0.25, 0.05, 0.4]
    mean = inference.trimmed_mean(values)
    known = scipy_stats.ttest_1samp(values, 0.1, alternative="greater")
    assert mean.p_above(0.1) == pytest.approx(known.pvalue)
    low, high = known.confidence_interval(0.95)
    assert mean.value == pytest.approx(np.mean(values))
    assert mean.interval(0.95)[0] == pytest.approx(scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95).low)
    assert low > mean.interval(0.95)[0]
    assert high == math.inf


def test_from_eight_on_it_is_yuens():
    values = np.random.default_rng(1).standard_t(3, 16)
    mean = inference.trimmed_mean(values)
    ordered = np.sort(values)
    assert mean.value == pytest.approx(scipy_stats.trim_mean(values, 1 / 8))
    winsorized = scipy_stats.mstats.winsorize(ordered, (1 / 8, 1 / 8))
    assert mean.standard_error == pytest.approx(np.std(winsorized, ddof=1) / (0.75 * math.sqrt(16)), rel=0.04)
    assert mean.freedom == 11


def test_one_wild_pair_does_not_hide_a_slow_down():
    values = [0.05 + 0.002 * (-1) ** number for number in range(12)]
    plain = scipy_stats.ttest_1samp([*values[:-1], -0.6], 0.01, alternative="greater").pvalue
    assert plain > 0.3
    assert inference.trimmed_mean([*values[:-1], -0.6]).p_above(0.01) < 0.001


@pytest.mark.parametrize("tails", ["normal", "heavy", "bursts"])
def test_the_level_holds(tails):
    random = np.random.default_rng(2)
    draws = {
        "normal": lambda: random.normal(size=12),
        "heavy": lambda: random.standard_t(3, 12),
        "bursts": lambda: random.normal(size=12) * np.where(random.random(12) < 0.1, 8, 1),
    }[tails]
    rejected = np.mean([inference.trimmed_mean(draws()).p_above(0.0) < 0.01 for _ in range(6000)])
    assert 0.002 < rejected < 0.0145


def test_fewer_than_two_have_no_mean():
    assert inference.trimmed_mean([0.3]) is None
    assert inference.noise_of([0.3]) is None
    assert inference.difference([0.3, 0.4], [0.3]) is None


def test_the_pseudo_median_is_steadier_than_the_median_and_as_little_moved_by_a_burst():
    assert inference.pseudo_median([0.3]) == 0.3
    assert inference.pseudo_median([0.0, 1.0, 5.0]) == pytest.approx(1.75)  # of 0, 0.5, 1, 2.5, 3 and 5
    samples = np.random.default_rng(0).normal(size=(2000, 15))
    steady = np.std([inference.pseudo_median(sample) for sample in samples])
    assert steady < 0.9 * np.std(np.median(samples, axis=1))
    disturbed = np.concatenate([samples, np.full((2000, 3), 100.0)], axis=1)
    assert max(map(inference.pseudo_median, disturbed)) < 3


def test_numbers_that_do_not_vary():
    mean = inference.trimmed_mean([0.0, 0.0, 0.0])
    assert mean.interval(0.95) == (0.0, 0.0)
    assert mean.p_above(0.01) == 1.0
    assert mean.p_below(0.01) == 0.0


def test_noise_is_the_deviation_of_a_pair():
    random = np.random.default_rng(3)
    assert np.mean([inference.noise_of(random.normal(0, 0.02, 12)) for _ in range(2000)]) == pytest.approx(
        0.02, rel=0.06
    )


def test_a_difference_is_welchs():
    random = np.random.default_rng(4)
    over, under = random.normal(0.1, 0.01, 5), random.normal(0, 0.05, 7)
    mean = inference.difference(over, under)
    known = scipy_stats.ttest_ind(over, under, equal_var=False)
    assert mean.freedom == pytest.approx(known.df)
    assert 2 * mean.p_above(0.0) == pytest.approx(known.pvalue)


def test_holm_and_benjamini_hochberg():
    p = [0.01, 0.04, 0.03, 0.005]
    assert inference.holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert inference.benjamini_hochberg(p) == pytest.approx(scipy_stats.false_discovery_control(p))
    assert inference.holm([]) == inference.benjamini_hochberg([]) == []
    assert inference.holm([0.9, 0.8]) == [1.0, 1.0]


def test_how_many_pairs_can_tell_at_all():
    assert inference.fewest_pairs(1, 0.01) == 7
    assert inference.fewest_pairs(40, 0.01) == 12
    assert 2.0**-12 <= 0.01 / 40 < 2.0**-11


def test_combined_is_linear():
    mean = inference.combined([(2.0, Mean(1.0, 0.3, 4)), (-1.0, Mean(0.5, 0.0, 4))])
    assert mean.value == 1.5
    assert mean.standard_error == pytest.approx(0.6)
    assert mean.freedom == pytest.approx(4)
