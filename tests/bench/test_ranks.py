"""The interval of the median against the binomial distribution."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from bench.ranks import median_rank


@pytest.mark.parametrize("count", [*range(6, 300, 7), 267, 301, 396, 1024, 5000])
def test_the_interval_of_the_median_is_that_of_the_binomial_distribution(count):
    rank = median_rank(count)
    assert rank is not None
    outside = [2 * binom.cdf(rank + step, count, 0.5) for step in (0, 1)]
    assert outside[0] <= 0.05 + 1e-9 < outside[1]


def test_fewer_than_six_hold_it_with_less():
    assert [median_rank(count) for count in range(7)] == [None] * 6 + [0]
