"""The rules of other tools, from their descriptions, to be held against the same samples as ours.

Each is a function of the samples of some processes of both sides that says whether head counts as slower.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

Samples = Sequence[Sequence[float]]
"""The seconds of every block, process by process."""

_Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Rival:
    """``processes`` of each side are compared; base's ran in the same rounds as head's if ``interleaved``."""

    name: str
    processes: int
    interleaved: bool
    is_slower: Callable[[Samples, Samples], bool]


def threshold(statistic: _Statistic, share: float) -> Callable[[Samples, Samples], bool]:
    """Whether the statistic of all samples has grown by more than a share."""

    def is_slower(base: Samples, head: Samples) -> bool:
        return statistic(_pooled(head)) > (1 + share) * statistic(_pooled(base))

    return is_slower


def asv(base: Samples, head: Samples) -> bool:
    """The rule of asv's ``continuous``: medians differ by a factor of 1.1, and a U test says that samples differ.

    Two processes of each revision, taking turns; Mann and Whitney's test at p < 0.002.
    """
    before, after = _pooled(base), _pooled(head)
    if statistics.median(after) <= 1.1 * statistics.median(before):
        return False
    return bool(stats.mannwhitneyu(after, before, alternative="two-sided").pvalue < 0.002)  # noqa: PLR2004  # its own


def _pooled(samples: Samples) -> list[float]:
    return [seconds for process in samples for seconds in process]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


RIVALS = (
    Rival("pytest-benchmark, compare-fail min:5%", 1, False, threshold(min, 0.05)),
    Rival("pytest-benchmark, compare-fail mean:5%", 1, False, threshold(_mean, 0.05)),
    Rival("pytest-benchmark, compare-fail median:5%", 1, False, threshold(statistics.median, 0.05)),
    Rival("asv continuous, factor 1.1, U test", 2, True, asv),
    Rival("median > 5%, stored baseline", 5, False, threshold(statistics.median, 0.05)),
    Rival("median > 5%, interleaved", 5, True, threshold(statistics.median, 0.05)),
    Rival("median > 10%, interleaved", 5, True, threshold(statistics.median, 0.10)),
)
