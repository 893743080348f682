"""Which of the sorted values hold the median: needed where it is measured, and where it is read. Needs nothing else."""

from __future__ import annotations

from functools import lru_cache

_ONE_OF = 20  # a 95% interval misses once in so many


@lru_cache(maxsize=4096)
def median_rank(count: int) -> int | None:
    """The largest k for which the k-th smallest to the k-th largest (from 0) of ``count`` hold the median with 95%.

    A value lies below the median with probability ½, whatever its distribution: the number that do is binomial. Whole
    numbers throughout, so that it is exact for any count. None for fewer than six.
    """
    ways = outside = 1
    all_ways, rank = 2**count, None
    for k in range(count // 2):
        if 2 * _ONE_OF * outside > all_ways:
            break
        rank = k
        ways = ways * (count - k) // (k + 1)
        outside += ways
    return rank
