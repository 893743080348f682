"""Whether time or memory grows faster with the length than before: the exponents in N, with an interval for time.

The change of an exponent is the slope of the log-ratios over log N, so whatever slows all lengths alike is none. It
fails the job only where the longest length is worse too: what became cheaper at short lengths has a steeper slope.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench import stats, wording
from bench.gate import exact
from bench.gate.decision import Comparison, Timed
from bench.gate.exact import Finding
from bench.gate.inference import Mean, combined, holm
from bench.gate.policy import DEFAULT, Policy
from bench.record import Case

_FEWEST_LENGTHS = 3
# Of the probability that identical code fails a job: exponents may add little to that of single times.
_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class _Point:
    length: int
    cell: Comparison
    time: Timed


def find(
    cells: Sequence[tuple[Comparison, Timed]], policy: Policy = DEFAULT, *, today: dt.date | None = None
) -> list[Finding]:
    """Exponents that changed, of every series of at least three lengths that both sides measured."""
    today = today or dt.datetime.now(tz=dt.UTC).date()
    series = [points for points in _series(cells) if len(points) >= _FEWEST_LENGTHS]
    return [*_times(series, policy, today), *_memories(series, policy, today)]


def _series(cells: Sequence[tuple[Comparison, Timed]]) -> list[list[_Point]]:
    """Square problems that differ in nothing but the length, by length."""
    found: dict[str, list[_Point]] = defaultdict(list)
    for cell, time in cells:
        workload = cell.case.workload
        if workload.is_square and cell.base.is_measured and cell.head.is_measured:
            key = _without_length(cell.case).key()
            found[key].append(_Point(workload.query_length, cell, time))
    return [sorted(points, key=lambda point: point.length) for points in found.values()]


def _without_length(case: Case) -> Case:
    return Case(
        variant=case.variant,
        parameters=case.parameters,
        kind=case.kind,
        workload=replace(case.workload, query_length=1, key_length=1),
    )


def _slopes(points: Sequence[_Point]) -> list[float]:
    """What each length's value counts in the least-squares slope."""
    logs = np.log([point.length for point in points])
    centred = logs - logs.mean()
    return [float(weight) for weight in centred / (centred**2).sum()]


def _times(series: Sequence[Sequence[_Point]], policy: Policy, today: dt.date) -> Iterator[Finding]:
    changes = [(points, change) for points in series if (change := _time_change(points)) is not None]
    adjusted = holm([change.p_above(policy.exponent_margin) for _, change in changes])
    for (points, change), p in zip(changes, adjusted, strict=True):
        longest = points[-1].time.mean
        if p <= policy.significance * _SHARE and longest is not None and longest.value > 0:
            low, high = change.interval(policy.confidence)
            lengths = wording.lengths(point.length for point in points)
            said = f"{change.value:+.3f} [{low:+.3f}, {high:+.3f}] over {lengths}"
            difference = exact.Difference("time exponent", "±0", said, "regression")
            yield exact.excused(points[-1].cell.case, difference, policy, today, series=True)


def _time_change(points: Sequence[_Point]) -> Mean | None:
    """None where a length has no mean, or identical code there differs by more than the margin."""
    means = [point.time.mean for point in points if not point.time.noisy]
    known = [mean for mean in means if mean is not None]
    return combined([*zip(_slopes(points), known, strict=True)]) if len(known) == len(points) else None


def _memories(series: Sequence[Sequence[_Point]], policy: Policy, today: dt.date) -> Iterator[Finding]:
    for points in series:
        base = {point.length: point.cell.base.peak_bytes for point in points}
        head = {point.length: point.cell.head.peak_bytes for point in points}
        before, after = _memory_exponent(base), _memory_exponent(head)
        longest = points[-1].cell
        if before is None or after is None or math.isclose(before, after, abs_tol=1e-9):
            continue
        fatter = (longest.head.peak_bytes or 0) > (longest.base.peak_bytes or 0)
        difference = exact.Difference(
            "memory exponent", f"{before:.3f}", f"{after:.3f}", "regression" if after > before and fatter else None
        )
        yield exact.excused(longest.case, difference, policy, today, series=True)


def _memory_exponent(peak_bytes: dict[int, int | None]) -> float | None:
    known = {length: float(size) for length, size in peak_bytes.items() if size}
    growth = stats.fixed_growth(known) if len(known) == len(peak_bytes) else None
    return None if growth is None else growth.exponent.value
