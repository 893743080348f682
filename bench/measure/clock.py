"""When is a series of samples good enough: warm up until settled, stop on the interval of the median.

A *sample* is the median time of a call within one block, in seconds. How a block is timed is the business of
:mod:`bench.measure.clock_cpu` and :mod:`bench.measure.clock_cuda`; both are a :class:`Clock`, and tests bring one of
their own.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.ranks import median_rank

HALF_WIDTH = 0.005
MIN_SAMPLES = 30
FEWEST_SAMPLES = 3
DEFAULT_BUDGET_SECONDS = 3.0

_AGREEMENT = 0.02
_WARM_UP_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    """The median time of a call in one block. ``blemish`` names what disturbed it, where something is known to have."""

    seconds: float
    blemish: str | None = None


class Clock(Protocol):
    """Times blocks of calls of one attention; warms up for ``warm_up_seconds`` at least."""

    warm_up_seconds: float

    def sample(self) -> Sample:
        """Time one block."""
        ...

    def now(self) -> float:
        """Seconds on a steady clock, for the budget."""
        ...


@dataclass(frozen=True, slots=True)
class Series:
    """Samples in order, without the dropped ones; whether their median is known to 0.5%; and what to tell of them."""

    seconds: list[float]
    settled: bool
    dropped_share: float = 0.0
    notes: list[str] = field(default_factory=list)


def collect(clock: Clock, *, budget_seconds: float | None = None, call_seconds: float = 0.0) -> Series:
    """Samples until the 95% interval of their median is within ±0.5%, at least 30, or until the budget is spent.

    ``budget_seconds`` bounds warm-up and samples together; None means 3. At least three samples are taken, also where
    one call takes longer than that. ``call_seconds`` is what a call took before: one that takes more than a
    quarter of the budget gets no further warm-up, since the calls that checked and weighed it were that.
    """
    budget = DEFAULT_BUDGET_SECONDS if budget_seconds is None else budget_seconds
    start = clock.now()
    samples: list[Sample] = []
    if call_seconds < _WARM_UP_SHARE * budget:
        samples += _warm_up(clock, until=start + max(_WARM_UP_SHARE * budget, clock.warm_up_seconds))
    settled = False
    while not settled and (len(_kept(samples)) < FEWEST_SAMPLES or clock.now() - start < budget):
        samples.append(clock.sample())
        clean = [sample.seconds for sample in samples if sample.blemish is None]
        settled = len(clean) >= MIN_SAMPLES and half_width(clean) <= HALF_WIDTH
    return _series(samples, settled=settled, spent_seconds=clock.now() - start)


def _warm_up(clock: Clock, *, until: float) -> list[Sample]:
    """Blocks until two medians in a row agree within 2%, for the clock's least warm-up, at most until ``until``.

    The two that agreed are settled, and the first samples, unless something disturbed one of them.
    """
    start = clock.now()
    last = [clock.sample()]
    while clock.now() < until and (clock.now() - start < clock.warm_up_seconds or not _agree(last)):
        last = [last[-1], clock.sample()]
    return last if _agree(last) and all(sample.blemish is None for sample in last) else []


def _agree(samples: Sequence[Sample]) -> bool:
    seconds = [sample.seconds for sample in samples]
    return len(seconds) > 1 and max(seconds) - min(seconds) <= _AGREEMENT * min(seconds)


def _series(samples: Sequence[Sample], *, settled: bool, spent_seconds: float) -> Series:
    blemishes = Counter(sample.blemish for sample in samples if sample.blemish is not None)
    kept = _kept(samples)
    dropped = len(samples) - len(kept)
    causes = ", ".join(f"{cause} ({count})" for cause, count in blemishes.most_common())
    notes = []
    if dropped:
        notes.append(f"{dropped} of {len(samples)} samples dropped: {causes}")
    elif blemishes:
        notes.append(f"{blemishes.total()} of {len(samples)} samples disturbed, too many to drop: {causes}")
    if not settled:
        notes.append(f"{_interval(kept)} after {len(kept)} samples in {spent_seconds:.2g} s")
    return Series(kept, settled, dropped / len(samples), notes)


def _kept(samples: Sequence[Sample]) -> list[float]:
    """Without the blemished ones, unless most are: then the disturbance belongs to the case, and all stay."""
    clean = [sample.seconds for sample in samples if sample.blemish is None]
    return clean if 2 * len(clean) >= len(samples) else [sample.seconds for sample in samples]


def _interval(seconds: Sequence[float]) -> str:
    width = half_width(seconds)
    return (
        "too few samples in this process for an interval"
        if width == math.inf
        else f"the median is known to ±{width:.1%}"
    )


def half_width(seconds: Sequence[float]) -> float:
    """Half the 95% interval of the median, as a share of the median; infinite for fewer than six samples."""
    rank = median_rank(len(seconds))
    if rank is None:
        return math.inf
    ordered = sorted(seconds)
    return (ordered[-1 - rank] - ordered[rank]) / 2 / statistics.median(ordered)
