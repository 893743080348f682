"""Medians, 95% intervals, ratios and growth exponents of measured seconds. Pure, seeded, and without torch.

Samples of one process are no independent measurements of a machine: its layout in memory can be lucky. So a process
counts once, with its median, wherever there are several; with a single one the interval covers what varied within it,
and no more.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.ranks import median_rank

CONFIDENCE = 0.95

# Two variants, each timed in one process, must differ by more than layout luck: identical code was seen to differ by
# several percent between processes.
SINGLE_PROCESS_MARGIN = 0.05

_TAIL = (1 - CONFIDENCE) / 2
_ORDERED_FROM = 6  # the fewest values of which the smallest and the largest hold the median with 95%
_ENOUGH_PROCESSES = 30
_RESAMPLES = 4000
_SEED = 20240229
_FARTHEST_CROSSING = 16

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Positive numbers, by the process that measured them."""

    by_process: Mapping[Hashable, Sequence[float]]

    def __len__(self) -> int:
        return len(self.by_process)

    @cached_property
    def medians(self) -> Floats:
        """One for each process, in their order.

        Raises:
            ValueError: a process without samples, or one that is not positive and finite.

        """
        series = [array("d", values) for values in self.by_process.values()]
        every = np.frombuffer(b"".join(series), np.float64)
        if not all(series) or not (every > 0).all() or not np.isfinite(every).all():
            raise ValueError("expected positive, finite samples in every process")
        if len(set(map(len, series))) == 1:
            return _middles(np.sort(every.reshape(len(series), -1)))
        return np.array(list(map(statistics.median, series)))

    @property
    def only(self) -> Sequence[float] | None:
        """The samples of the process, where it is the only one."""
        return next(iter(self.by_process.values())) if len(self.by_process) == 1 else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95% interval; ``low`` and ``high`` are None together, where too little is known for one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half the interval as a share of the value."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.value


def _middles(ordered: Floats) -> Floats:
    """The median of each sorted row."""
    half = ordered.shape[1] // 2
    return ordered[:, half] if ordered.shape[1] % 2 else (ordered[:, half - 1] + ordered[:, half]) / 2


# --- medians --------------------------------------------------------------------------------------------------


def median_interval(values: Sequence[float] | Floats) -> tuple[float, float] | None:
    """The 95% interval of the median, between two of the sorted values, whatever their distribution; None below six."""
    rank = median_rank(len(values))
    if rank is None:
        return None
    ordered = np.sort(values)
    return float(ordered[rank]), float(ordered[-1 - rank])


def median(samples: Samples) -> Estimate:
    """The median over processes of their medians; of a single process, the median of its samples.

    Raises:
        ValueError: no samples at all, or one that is not positive and finite.

    """
    medians = samples.medians
    if not len(medians):
        raise ValueError("expected samples of one process at least, got none")
    return estimate(medians if samples.only is None else samples.only)


def estimate(values: Sequence[float] | Floats) -> Estimate:
    """The median of positive numbers and its interval.

    From six on by order statistics; of two to five by Student's t on the logarithms; of one there is none.
    """
    middle = float(np.median(values))
    between = median_interval(values)
    if between is not None:
        return Estimate(middle, *between)
    if len(values) == 1:
        return Estimate(middle)
    logs = np.log(values)
    half = float(special.stdtrit(len(logs) - 1, 1 - _TAIL)) * _standard_error(logs)
    centre = float(np.mean(logs))
    # rounding alone may put the median of equal values outside
    return Estimate(middle, min(middle, math.exp(centre - half)), max(middle, math.exp(centre + half)))


def _standard_error(values: Floats) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


# --- ratios ---------------------------------------------------------------------------------------------------


def ratio(numerator: Samples, denominator: Samples) -> Estimate:
    """How many times larger: the median ratio with its interval.

    Where both were measured in the same two or more processes (or passes), each gives one ratio, so that what drifted
    from pass to pass cancels. Otherwise the ratio of the medians, with both intervals joined on the logarithms by
    recovering a variance from each (Zou and Donner 2008).
    """
    under = dict(zip(denominator.by_process, denominator.medians.tolist(), strict=True))
    over = zip(numerator.by_process, numerator.medians.tolist(), strict=True)
    shared = [seconds / under[process] for process, seconds in over if process in under]
    if len(shared) > 1:
        return estimate(shared)
    return ratio_of_estimates(median(numerator), median(denominator))


def ratio_of_estimates(over: Estimate, under: Estimate) -> Estimate:
    """Of two that know nothing of each other, with both intervals joined; there is none if either lacks one."""
    value = over.value / under.value
    if over.low is None or over.high is None or under.low is None or under.high is None:
        return Estimate(value)
    down = math.hypot(math.log(over.value / over.low), math.log(under.high / under.value))
    up = math.hypot(math.log(over.high / over.value), math.log(under.value / under.low))
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


def within_noise(some: Samples, others: Samples) -> bool:
    """Whether what was measured cannot tell which is larger.

    The interval of their ratio holds one, or there is none; or each was seen in a single process and they differ
    by less than 5%.
    """
    larger = ratio(some, others)
    if larger.low is None or larger.high is None or larger.low <= 1 <= larger.high:
        return True
    single = min(len(some), len(others)) == 1
    return single and abs(math.log(larger.value)) < math.log1p(SINGLE_PROCESS_MARGIN)


# --- growth ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Growth:
    """How something grows with the length N, as N to the power of ``exponent``, fitted over all ``lengths``.

    The interval tells how well the slope of the straight line through *these* lengths is known, not how straight they
    lie: ``at_the_end`` is the exponent between the last two alone, and differs where the growth has not settled.
    """

    exponent: Estimate
    at_the_end: float
    lengths: tuple[int, ...]


def growth(series: Mapping[int, Samples]) -> Growth | None:
    """The least-squares exponent over lengths, with a bootstrap interval; None with fewer than two lengths.

    With one process each, medians are drawn again from its samples at each length. With several, deviations of
    processes from their length's mean are drawn from all lengths at once, since two or three at one length say little;
    more than thirty need no help.
    """
    lengths = tuple(sorted(series))
    if len(lengths) < 2:  # noqa: PLR2004  # a slope has two ends
        return None
    logs = [np.log(series[length].medians) for length in lengths]
    middles = np.array([float(np.median(values)) for values in logs])
    slope = float(_slope(np.log(lengths), middles))
    end = (middles[-1] - middles[-2]) / math.log(lengths[-1] / lengths[-2])
    if not all(_is_resampled(series[length]) for length in lengths):
        return Growth(Estimate(slope), float(end), lengths)
    drawn = _slope(np.log(lengths), _resampled([series[length] for length in lengths], np.random.default_rng(_SEED)))
    low, high = np.quantile(drawn - slope, [_TAIL, 1 - _TAIL]) * _widening(sum(len(values) - 1 for values in logs))
    return Growth(Estimate(slope, slope + min(0.0, float(low)), slope + max(0.0, float(high))), float(end), lengths)


def _widening(freedom: int) -> float:
    """What a bootstrap over few processes lacks: the quantile of Student's t over that of the normal distribution."""
    return float(special.stdtrit(freedom, 1 - _TAIL) / special.ndtri(1 - _TAIL)) if freedom else 1.0


def fixed_growth(values: Mapping[int, float]) -> Growth | None:
    """The same for numbers that do not vary, such as bytes: an exponent without an interval."""
    return growth({length: Samples({0: [value]}) for length, value in values.items()})


def _is_resampled(samples: Samples) -> bool:
    """Whether there is anything to draw again: several processes, or several samples of one."""
    return samples.only is None or len(samples.only) > 1


def _slope(x: Floats, y: Floats) -> Floats:
    """Least-squares slope over the last axis."""
    centred = x - x.mean()
    return np.asarray((y * centred).sum(axis=-1) / (centred**2).sum())


def _resampled(series: Sequence[Samples], random: np.random.Generator) -> Floats:
    """Logarithms of the median at each length as they might have come out; ``(resamples, lengths)``."""
    logs = [np.log(samples.medians) for samples in series]
    middles = [float(np.median(values)) for values in logs]
    deviations = [values - values.mean() for values in logs if len(values) > 1]
    scale = [math.sqrt(len(values) / (len(values) - 1)) for values in deviations]
    pool = np.concatenate([part * factor for part, factor in zip(deviations, scale, strict=True)] or [np.zeros(1)])
    columns = []
    for samples, values, middle in zip(series, logs, middles, strict=True):
        if samples.only is not None:
            columns.append(_resampled_medians(np.log(samples.only), random))
        elif len(values) > _ENOUGH_PROCESSES:
            columns.append(_resampled_medians(values, random))
        else:
            columns.append(middle + np.median(random.choice(pool, (_RESAMPLES, len(values))), axis=1))
    return np.stack(columns, axis=-1)


def _resampled_medians(logs: Floats, random: np.random.Generator) -> Floats:
    """Medians of some logarithms, as they might have come out.

    Drawn by rank, since the middle one of n uniform ranks has a beta distribution; of two to five from Student's t.
    """
    count = len(logs)
    if count < _ORDERED_FROM:
        return np.asarray(np.median(logs) + _standard_error(logs) * random.standard_t(count - 1, _RESAMPLES))
    half = (count + 1) / 2
    ranks = random.beta(half, half, _RESAMPLES) * count
    return np.asarray(np.sort(logs)[np.minimum(ranks.astype(int), count - 1)])


# --- crossings ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crossing:
    """The length from which one is faster than another, up to the longest measured or beyond it.

    ``low`` is 0 where it may be faster at every length that was measured, ``high`` infinite where it may never be.
    ``extrapolated``: the crossing lies beyond what was measured, on the line through the last two lengths.
    """

    length: float
    low: float
    high: float
    extrapolated: bool


def crossing(challenger: Mapping[int, Samples], champion: Mapping[int, Samples]) -> Crossing | None:
    """Where the challenger passes the champion, with a bootstrap interval.

    None with fewer than two lengths in common, and where it is faster at all of them, or neither is nor draws nearer,
    or would be only beyond sixteen times the longest.
    """
    lengths = [length for length in sorted(challenger) if length in champion]
    if len(lengths) < 2:  # noqa: PLR2004  # a line has two ends
        return None
    sides = [[series[length] for length in lengths] for series in (challenger, champion)]
    x = np.log(lengths)
    ours, theirs = (np.array([math.log(median(samples).value) for samples in side]) for side in sides)
    (place,) = _crossings(x, (ours - theirs)[np.newaxis])
    if not 0 < place < math.inf:
        return None
    low, high = place, place
    if all(_is_resampled(samples) for side in sides for samples in side):
        random = np.random.default_rng(_SEED)
        drawn = _crossings(x, _resampled(sides[0], random) - _resampled(sides[1], random))
        low, high = np.quantile(drawn, [_TAIL, 1 - _TAIL], method="closest_observation")
    return Crossing(float(place), float(min(low, place)), float(max(high, place)), bool(place > lengths[-1]))


def _crossings(x: Floats, differences: Floats) -> Floats:
    """Of each row of differences of logarithms over log N, the length from which it stays below zero.

    0 where it always is; infinite where it is not at the end and does not come to be within sixteen times of it.
    """
    count = len(x)
    behind = differences >= 0
    last = count - 1 - np.argmax(behind[:, ::-1], axis=1)
    start = np.minimum(last, count - 2)  # at the end, the last step goes on
    rows = np.arange(len(differences))
    left, right = differences[rows, start], differences[rows, start + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        place = x[start] + left / (left - right) * (x[start + 1] - x[start])
    ever = behind.any(axis=1)
    closes = (right < left) & (place <= x[-1] + math.log(_FARTHEST_CROSSING))
    return np.where(ever, np.where(closes, np.exp(np.minimum(place, 700)), math.inf), 0.0)
