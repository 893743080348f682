from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import stats
from bench.stats import Samples

TIMES = st.floats(1e-7, 1e3)
SERIES = st.lists(TIMES, min_size=1, max_size=40)
PROCESSES = st.lists(SERIES, min_size=1, max_size=8).map(lambda series: dict(enumerate(series)))


def median(samples):
    return stats.median(Samples(samples))


def ratio(numerator, denominator):
    return stats.ratio(Samples(numerator), Samples(denominator))


def within_noise(some, others):
    return stats.within_noise(Samples(some), Samples(others))


def growth(series):
    return stats.growth({length: Samples(samples) for length, samples in series.items()})


def simulated(random, middle, processes, *, between=0.03, within=0.02, blocks=30):
    """Processes that differ, with skewed blocks; with one process, the truth is its own."""
    luck = np.exp(random.normal(0, between, processes)) if processes > 1 else np.ones(1)
    noise = random.exponential(within, (processes, blocks)) - within * math.log(2)
    return {process: middle * luck[process] * np.exp(noise[process]) for process in range(processes)}


# --- medians --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [*range(6, 40), 100, 501])
def test_order_statistics_are_the_narrowest_that_hold_the_median_with_95_percent(count):
    low, high = stats.median_interval(list(range(count)))
    rank = int(low)
    assert high == count - 1 - rank
    outside = [2 * sum(math.comb(count, below) for below in range(k + 1)) / 2**count for k in (rank, rank + 1)]
    assert outside[0] <= 0.05 < outside[1]


def test_below_six_values_there_is_no_interval_by_order():
    assert stats.median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_one_value_has_no_interval():
    assert median({0: [3.0]}) == stats.Estimate(3.0)


def test_few_samples_of_one_process_have_a_wide_interval():
    estimate = median({0: [1.0, 1.1, 1.2]})
    assert estimate.value == 1.1
    assert estimate.low < 0.95
    assert estimate.high > 1.25


@given(PROCESSES)
def test_the_median_lies_in_its_interval(samples):
    estimate = median(samples)
    if estimate.low is not None:
        assert estimate.low <= estimate.value <= estimate.high
        assert estimate.half_width >= 0


@given(PROCESSES, st.floats(1e-2, 1e2))
def test_the_estimate_scales_with_the_unit(samples, scale):
    plain = median(samples)
    scaled = median({key: [scale * value for value in values] for key, values in samples.items()})
    assert scaled.value == pytest.approx(scale * plain.value)
    if plain.low is not None:
        assert scaled.low == pytest.approx(scale * plain.low)
        assert scaled.high == pytest.approx(scale * plain.high)


@given(st.permutations(list(range(1, 12))))
def test_the_order_of_samples_does_not_matter(values):
    assert median({0: values}) == median({0: sorted(values)})


def test_a_process_counts_once_however_many_samples_it_has():
    assert median({0: [1.0] * 100, 1: [2.0], 2: [3.0]}).value == 2.0


def test_samples_of_one_process_are_not_taken_for_independent_processes():
    alike = [1.0, 1.001, 1.002, 0.999, 1.0, 1.001]
    one, two = median({0: alike}), median({0: alike, 1: [1.05 * value for value in alike]})
    assert two.half_width > 10 * one.half_width


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -1.0], [math.nan], [math.inf]])
def test_what_is_no_time_is_refused(values):
    with pytest.raises(ValueError, match="expected"):
        median({0: values})


def test_without_processes_there_is_no_median():
    with pytest.raises(ValueError, match="got none"):
        median({})


@pytest.mark.parametrize(("processes", "least"), [(1, 0.93), (2, 0.93), (3, 0.92), (5, 0.93), (8, 0.95)])
def test_intervals_of_medians_and_ratios_hold_the_truth(processes, least):
    random = np.random.default_rng(processes)
    medians = ratios = 0
    rounds = 400
    for _ in range(rounds):
        some, twice = (simulated(random, middle, processes) for middle in (1.0, 2.0))
        middle, larger = median(some), ratio(twice, some)
        medians += middle.low <= 1 <= middle.high
        ratios += larger.low <= 2 <= larger.high
    assert medians / rounds >= least
    assert ratios / rounds >= least


@pytest.mark.parametrize("processes", [3, 20])
def test_unpaired_ratios_hold_the_truth_and_are_not_much_too_wide(processes):
    random = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        some = simulated(random, 1.0, processes)
        twice = {("other", process): values for process, values in simulated(random, 2.0, processes).items()}
        held += (larger := ratio(twice, some)).low <= 2 <= larger.high
    assert 0.94 <= held / 400 <= 0.995


# --- ratios ---------------------------------------------------------------------------------------------------


@given(PROCESSES, PROCESSES)
def test_a_ratio_turned_over_is_its_inverse(some, others):
    forward, backward = ratio(some, others), ratio(others, some)
    if (
        len(some.keys() & others.keys()) <= 1 or len(some.keys() & others.keys()) % 2
    ):  # the middle of an even number is a mean
        assert forward.value * backward.value == pytest.approx(1)
    if forward.low is not None:
        assert forward.low * backward.high == pytest.approx(1)
        assert forward.high * backward.low == pytest.approx(1)


def test_drift_that_both_share_cancels_in_their_ratio():
    drift = [1.0, 1.3, 0.8, 1.6]
    some = {process: [factor * 1.0] * 6 for process, factor in enumerate(drift)}
    twice = {process: [factor * 2.0] * 6 for process, factor in enumerate(drift)}
    apart = {process + 10: values for process, values in twice.items()}
    assert ratio(twice, some).half_width == pytest.approx(0, abs=1e-9)
    assert ratio(apart, some).half_width > 0.3


def test_without_an_interval_of_either_there_is_none_of_the_ratio():
    assert ratio({0: [1.0]}, {0: [2.0] * 8}) == stats.Estimate(0.5)


def test_single_processes_must_differ_by_more_than_layout_luck():
    steady = [1.0] * 20
    assert within_noise({0: steady}, {0: [1.04] * 20})
    assert not within_noise({0: steady}, {0: [1.06] * 20})


def test_several_processes_tell_small_differences():
    some = {process: [1.0 + 0.001 * process] * 6 for process in range(6)}
    slower = {process: [1.03 + 0.001 * process] * 6 for process in range(6)}
    assert not within_noise(some, slower)
    assert within_noise(some, {process: [1.0 + 0.003 * (2 - process)] * 6 for process in range(6)})


def test_what_has_no_interval_is_never_told_apart():
    assert within_noise({0: [1.0]}, {0: [9.0] * 9})


# --- growth ---------------------------------------------------------------------------------------------------


@given(st.floats(-1, 3), st.lists(st.integers(16, 10**6), min_size=2, max_size=6, unique=True))
def test_a_power_of_the_length_is_found(power, lengths):
    grown = growth({length: {0: [1e-6 * length**power] * 6} for length in lengths})
    assert grown.exponent.value == pytest.approx(power, abs=1e-6)
    assert grown.at_the_end == pytest.approx(power, abs=1e-6)
    assert grown.lengths == tuple(sorted(lengths))


def test_one_length_has_no_growth():
    assert growth({256: {0: [1.0] * 9}}) is None
    assert stats.fixed_growth({}) is None


def test_bytes_have_an_exponent_without_an_interval():
    grown = stats.fixed_growth({256: 10, 512: 40, 1024: 160})
    assert grown.exponent.value == pytest.approx(2)
    assert grown.exponent.low is None


def test_a_bend_shows_at_the_end():
    grown = growth({length: {0: [1e-3 + 1e-9 * length**2] * 8} for length in (256, 1024, 4096)})
    assert grown.exponent.value < 1.2
    assert grown.at_the_end > 1.4


def test_a_single_sample_leaves_the_exponent_without_an_interval():
    series = {256: {0: [1.0]}, 512: {0: [2.0] * 9}}
    assert growth(series).exponent.low is None


def test_the_interval_is_the_same_every_time():
    random = np.random.default_rng(3)
    series = {length: simulated(random, length, 2) for length in (256, 512, 1024)}
    assert growth(series) == growth(series)


@pytest.mark.parametrize(("processes", "blocks"), [(1, 30), (1, 3), (2, 10), (5, 10)])
def test_intervals_of_exponents_hold_the_truth(processes, blocks):
    random = np.random.default_rng(processes)
    held = 0
    for _ in range(200):
        series = {
            length: simulated(random, 1e-6 * length**1.5, processes, blocks=blocks) for length in (256, 512, 1024, 2048)
        }
        exponent = growth(series).exponent
        assert exponent.low <= exponent.value <= exponent.high
        held += exponent.low <= 1.5 <= exponent.high
    assert held / 200 >= 0.92


@settings(max_examples=30)
@given(st.lists(PROCESSES, min_size=2, max_size=4))
def test_growth_takes_any_samples(series):
    grown = growth({256 * 2**index: samples for index, samples in enumerate(series)})
    assert math.isfinite(grown.exponent.value)


def test_medians_of_many_processes_are_those_of_each():
    random = np.random.default_rng(3)
    many = {process: random.lognormal(size=6).tolist() for process in range(20)}
    alone = [statistics.median(values) for values in many.values()]
    assert Samples(many).medians.tolist() == alone
    assert Samples(many | {20: [2.0, 1.0, 3.0]}).medians.tolist() == [*alone, 2.0]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_samples_among_many_processes_are_refused(bad):
    with pytest.raises(ValueError, match="positive, finite"):
        _ = Samples({process: [1.0, bad] for process in range(20)}).medians
