"""Creep along a series of stored runs: where the time of a case changed for good, too little for any one gate to see.

The unit is a run, with the median of its processes. A change is where the mean of the logarithms before and after
differ most; how likely as large a difference is without any change is told by permuting the runs, which needs no
distribution, and Holm allows for all cases. After one is found, both parts are searched for more. The interval of
*where* holds the places at which the fit is almost as good (a likelihood ratio of 95%); that of *how much* is a t
interval of the two parts.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench import wording
from bench.errors import NotComparableError
from bench.gate.baselines import revision
from bench.gate.inference import difference, holm
from bench.record import Case, Measured, Record
from bench.stats import Estimate

FEWEST_RUNS = 6
_FEWEST_A_PART = 2
_PERMUTATIONS = 9999
_SEED = 20240229

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a series, and the median seconds of each case in it, by the key of the case."""

    run_id: str
    at: str
    revision: str
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Change:
    """From ``run`` on, a case takes ``ratio`` times as long as before; ``p`` is adjusted for all cases.

    The change is at ``run``, or, with 95%, anywhere from ``earliest`` to ``latest``.
    """

    case: Case
    ratio: Estimate
    p: float
    run: Run
    earliest: Run
    latest: Run

    @property
    def is_slower(self) -> bool:
        return self.ratio.value > 1


def series(records: Sequence[Record]) -> list[Run]:
    """The runs, in the order of their first records' time; those without a time stand first, as given."""
    by_run: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_run[record.run_id].append(record)
    runs = [
        Run(run_id, min(record.at or "" for record in found), revision(found[0]), _seconds(found))
        for run_id, found in by_run.items()
    ]
    return sorted(runs, key=lambda run: run.at)


def _seconds(records: Sequence[Record]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if isinstance(record.outcome, Measured) and record.outcome.seconds and min(record.outcome.seconds) > 0:
            found[record.case.key()].append(statistics.median(record.outcome.seconds))
    return {key: statistics.median(values) for key, values in found.items()}


def changes(
    runs: Sequence[Run], cases: Sequence[Case], *, significance: float = 0.01, confidence: float = 0.95
) -> list[Change]:
    """Changes of all cases, in the order of cases and runs."""
    found = {case.key(): (case, _runs_with(case, runs)) for case in cases}
    found = {key: value for key, value in found.items() if len(value[1]) >= FEWEST_RUNS}
    return [*_search([*found.values()], significance, confidence)]


def fewest_runs(cases: int, significance: float) -> int:
    """How many runs can show that one of so many cases changed: their orders must be able to be unlikely enough."""
    return next(count for count in range(FEWEST_RUNS, 1000) if 2 * cases / math.comb(count, count // 2) <= significance)


def check_runs(runs: Sequence[Run], cases: Sequence[Case], significance: float) -> None:
    """Whether so many runs can show anything.

    Raises:
        NotComparableError: they cannot; the message names how many could.

    """
    needed = fewest_runs(len(cases), significance)
    if len(runs) < needed:
        raise NotComparableError(
            f"{wording.counted(len(runs), 'run')} cannot show that one of {wording.counted(len(cases), 'case')} "
            f"changed at significance {significance:g}: expected {needed} runs at least"
        )


def _runs_with(case: Case, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if case.key() in run.seconds]


def _search(found: Sequence[tuple[Case, list[Run]]], significance: float, confidence: float) -> Iterator[Change]:
    """All cases at once, then the parts of those that changed, until nothing is significant any more."""
    order = {case.key(): number for number, (case, _) in enumerate(found)}
    open_parts, changed = [*found], []
    while open_parts:
        logs = [np.log([run.seconds[case.key()] for run in runs]) for case, runs in open_parts]
        draws = max(_PERMUTATIONS, math.ceil(2 * len(logs) / significance))
        adjusted = holm([_probability(values, draws) for values in logs])
        further = []
        for (case, runs), values, p in zip(open_parts, logs, adjusted, strict=True):
            if p <= significance:
                place = _place(values)
                changed.append(_change(case, runs, values, p=p, confidence=confidence))
                further += [(case, part) for part in (runs[:place], runs[place:]) if len(part) >= FEWEST_RUNS]
        open_parts = further
    yield from sorted(changed, key=lambda change: (order[change.case.key()], change.run.at))


def _gains(logs: _Floats) -> _Floats:
    """``(…, places)``: by how much the sum of squares falls if the mean may change at each place."""
    count = logs.shape[-1]
    sums = np.cumsum(logs - logs.mean(axis=-1, keepdims=True), axis=-1)[..., :-1]
    before = np.arange(1, count)
    gains: _Floats = sums**2 * (1 / before + 1 / (count - before))
    return gains[..., _FEWEST_A_PART - 1 : count - _FEWEST_A_PART]


def _place(logs: _Floats) -> int:
    """The first index after the change."""
    return int(np.argmax(_gains(logs))) + _FEWEST_A_PART


def _probability(logs: _Floats, draws: int) -> float:
    """Of a gain this large in runs that are in no order."""
    random = np.random.default_rng(_SEED)
    shuffled = random.permuted(np.tile(logs, (draws, 1)), axis=1)
    reached = np.count_nonzero(_gains(shuffled).max(axis=1) >= _gains(logs).max() - 1e-15)
    return (1 + int(reached)) / (1 + draws)


def _change(case: Case, runs: Sequence[Run], logs: _Floats, *, p: float, confidence: float) -> Change:
    place = _place(logs)
    step = difference([*logs[place:]], [*logs[:place]])
    assert step is not None  # noqa: S101  # both parts have two runs
    low, high = step.interval(confidence)
    gains = _gains(logs)
    rest = float(((logs - logs.mean()) ** 2).sum()) - gains
    # 2 log likelihood ratio of a normal model with a common, estimated variance
    worse = len(logs) * np.log(np.maximum(rest, 1e-300) / max(float(rest.min()), 1e-300))
    near = np.flatnonzero(worse <= special.chdtri(1, 1 - confidence)) + _FEWEST_A_PART
    ratio = Estimate(math.exp(step.value), math.exp(low), math.exp(high))
    return Change(case, ratio, p, runs[place], runs[int(near.min())], runs[int(near.max())])
