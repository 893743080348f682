"""When a series is good enough, by a clock that stands still unless told."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from bench.measure.clock import MIN_SAMPLES, Sample, collect, half_width


class FakeClock:
    """Gives the samples it is told to, each of which takes ``block_seconds``."""

    def __init__(self, samples, *, block_seconds=0.01, warm_up_seconds=0.0):
        self._samples = iter(samples)
        self._block_seconds = block_seconds
        self.warm_up_seconds = warm_up_seconds
        self.taken = 0
        self.time = 100.0

    def now(self):
        return self.time

    def sample(self):
        self.time += self._block_seconds
        self.taken += 1
        drawn = next(self._samples)
        return drawn if isinstance(drawn, Sample) else Sample(drawn)


def noisy(spread, seed=0):
    draw = random.Random(seed)  # noqa: S311  # no secret
    return (1 + draw.gauss(0, spread) for _ in itertools.count())


# --- the interval of the median ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [6, 7, 30, 31, 100, 357])
def test_the_interval_is_the_narrowest_that_holds_the_median_with_95_percent(count):
    ordered = [float(value) for value in range(1, count + 1)]
    width = half_width(ordered) * (count + 1)  # ranks between the ends
    rank = (count - 1 - width) / 2
    assert rank == int(rank)
    # below the interval if `rank` or fewer samples lie below the median; above it likewise
    assert 2 * binom.cdf(rank, count, 0.5) <= 0.05
    assert 2 * binom.cdf(rank + 1, count, 0.5) > 0.05


@pytest.mark.parametrize("count", [1, 5])
def test_five_samples_know_nothing(count):
    assert half_width([1.0] * count) == math.inf


@given(st.lists(st.floats(0.5, 2), min_size=6, max_size=80), st.floats(0.001, 1000))
def test_the_width_is_a_share(samples, factor):
    assert half_width([factor * sample for sample in samples]) == pytest.approx(half_width(samples))
    assert 0 <= half_width(samples) <= 1.5


def test_the_interval_covers():
    """Of many small series from a skewed distribution, about 95% have the true median inside."""
    draw = random.Random(1)  # noqa: S311  # no secret
    inside = 0
    for _ in range(1000):
        ordered = sorted(draw.expovariate(1) for _ in range(31))
        rank = (30 - round(half_width(range(31)) * 2 * 15)) // 2
        inside += ordered[rank] <= math.log(2) <= ordered[-1 - rank]
    assert 930 <= inside <= 990


# --- when to stop --------------------------------------------------------------------------------------------------


def test_quiet_samples_stop_at_thirty():
    clock = FakeClock(itertools.repeat(0.002))
    series = collect(clock, budget_seconds=100)
    assert series.settled
    assert series.seconds == [0.002] * MIN_SAMPLES
    assert series.notes == []
    assert clock.taken == MIN_SAMPLES  # the two that showed that it is warm included


def test_noise_is_sampled_until_the_interval_is_narrow():
    series = collect(FakeClock(noisy(0.02)), budget_seconds=100)
    assert series.settled
    assert MIN_SAMPLES < len(series.seconds) < 400
    assert half_width(series.seconds) <= 0.005
    assert half_width(series.seconds[:-1]) > 0.005


def test_a_spent_budget_ends_it_and_is_told():
    clock = FakeClock(noisy(0.3))
    series = collect(clock, budget_seconds=1)
    assert not series.settled
    assert 1 <= clock.time - 100 <= 1.02
    (note,) = series.notes
    assert note.startswith("the median is known to ±")
    assert f"after {len(series.seconds)} samples in 1 s" in note


def test_without_a_budget_it_is_three_seconds():
    clock = FakeClock(noisy(0.5), block_seconds=0.1)
    collect(clock)
    assert clock.time == pytest.approx(103, abs=0.2)


def test_a_call_longer_than_the_budget_gives_three_samples_and_no_warm_up():
    clock = FakeClock(itertools.repeat(5.0), block_seconds=5)
    series = collect(clock, budget_seconds=1, call_seconds=5)
    assert series.seconds == [5.0] * 3
    assert clock.taken == 3
    assert series.notes == ["too few samples in this process for an interval after 3 samples in 15 s"]


def test_it_warms_up_until_two_medians_agree():
    samples = [9.0, 5.0, 3.0, 2.0, 2.01]
    clock = FakeClock(itertools.chain(samples, itertools.repeat(2.0)))
    series = collect(clock, budget_seconds=10)
    assert series.seconds == [2.0, 2.01, *[2.0] * (MIN_SAMPLES - 2)]
    assert clock.taken == 3 + MIN_SAMPLES


def test_a_disturbed_block_of_the_warm_up_is_no_sample():
    clock = FakeClock([Sample(2.0, "heat"), Sample(2.01), *[Sample(2.0)] * MIN_SAMPLES])
    series = collect(clock, budget_seconds=10)
    assert series.seconds == [2.0] * MIN_SAMPLES
    assert series.dropped_share == 0


def test_a_warm_up_that_never_settles_takes_a_quarter_of_the_budget():
    clock = FakeClock(itertools.cycle([1.0, 2.0]))
    series = collect(clock, budget_seconds=4)
    assert len(series.seconds) == pytest.approx(300, abs=2)
    assert clock.taken - len(series.seconds) == pytest.approx(100, abs=2)  # no two agreed: all of them are lost


def test_a_clock_that_asks_for_a_long_warm_up_gets_it():
    clock = FakeClock(itertools.repeat(1.0), warm_up_seconds=0.2)
    assert len(collect(clock, budget_seconds=0.1).seconds) == 3  # its last two, and one more
    assert clock.taken - 1 == pytest.approx(20, abs=1)


# --- what is dropped -----------------------------------------------------------------------------------------------


def test_a_sample_goes_only_for_a_named_cause():
    blemished = Sample(50.0, "heat")
    samples = itertools.cycle([Sample(1.0), Sample(1.0), Sample(1.0), blemished])
    series = collect(FakeClock(samples), budget_seconds=100)
    assert set(series.seconds) == {1.0}
    assert series.settled
    assert series.dropped_share == pytest.approx(0.25, abs=0.02)
    assert series.notes == ["9 of 39 samples dropped: heat (9)"]


def test_an_outlier_without_a_cause_stays():
    samples = itertools.chain([1.0, 1.0, 50.0], itertools.repeat(1.0))
    series = collect(FakeClock(samples), budget_seconds=100)
    assert 50.0 in series.seconds
    assert series.dropped_share == 0


def test_three_samples_are_three_that_stay():
    clock = FakeClock([Sample(1.0), Sample(9.0, "heat"), Sample(1.0), Sample(1.0)], block_seconds=5)
    series = collect(clock, budget_seconds=1, call_seconds=5)
    assert series.seconds == [1.0, 1.0, 1.0]
    assert series.dropped_share == 0.25


def test_where_most_are_disturbed_all_stay():
    samples = itertools.cycle([Sample(2.0, "heat"), Sample(2.0, "heat"), Sample(1.0)])
    series = collect(FakeClock(samples), budget_seconds=0.3)
    assert sorted(set(series.seconds)) == [1.0, 2.0]
    assert series.dropped_share == 0
    assert "too many to drop: heat" in series.notes[0]
    assert not series.settled
