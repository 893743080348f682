"""From which length on a contender is faster than another: told against the fastest exact one and the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench import stats, wording
from bench.cells import Cell, Contender
from bench.report import markdown
from bench.stats import Crossing, Samples

_FEWEST = 2

Series = Mapping[int, Samples]


def champions(cells: Sequence[Cell], over: str | None) -> list[Contender]:
    """Whom to be held against: the exact one that is fastest at its longest length, and the baseline ``over``."""
    series = _series(cells)
    exact = [contender for contender, samples in series.items() if contender.exact and len(samples) >= _FEWEST]
    if not exact:
        return []
    longest = max(max(series[contender]) for contender in exact)
    at_the_end = [contender for contender in exact if longest in series[contender]]
    fastest = min(at_the_end, key=lambda contender: stats.median(series[contender][longest]).value)
    baseline = [contender for contender in series if contender.label == over and contender is not fastest]
    return [fastest, *baseline]


def table(cells: Sequence[Cell], over: str | None) -> str:
    """Contenders down, champions across. ``cells`` are of one ground, mask and mode; empty with one length alone."""
    against = champions(cells, over)
    series = _series(cells)
    rows = [
        [
            markdown.code(contender.label) if contender.exact else f"≈ {markdown.code(contender.label)}",
            *("" if other is contender else told(samples, series[other]) for other in against),
        ]
        for contender, samples in series.items()
        if not contender.is_floor and len(samples) >= _FEWEST and [contender] != against
    ]
    header = ["faster than", *(markdown.code(other.label) for other in against)]
    return markdown.table(header, rows, left=len(header)) if against else ""


def _series(cells: Sequence[Cell]) -> dict[Contender, dict[int, Samples]]:
    found: dict[Contender, dict[int, Samples]] = {}
    for cell in cells:
        if cell.samples:
            found.setdefault(cell.contender, {})[cell.length] = cell.samples
    return found


def told(ours: Series, theirs: Series) -> str:
    """Where ours passes theirs, in words."""
    shared = [length for length in sorted(ours) if length in theirs]
    if len(shared) < _FEWEST:
        return "too few lengths"
    place = stats.crossing(ours, theirs)
    if place is not None:
        return f"from {_place(place, shared[0])} on" + (", *extrapolated*" if place.extrapolated else "")
    if stats.within_noise(ours[shared[-1]], theirs[shared[-1]]):
        return "within noise at the longest"
    if stats.median(ours[shared[-1]]).value < stats.median(theirs[shared[-1]]).value:
        return "at every length"
    back = stats.crossing(theirs, ours)
    if back is not None and not back.extrapolated:
        return f"up to {_place(back, shared[0])}"
    return "at no length"


def _place(place: Crossing, shortest: int) -> str:
    low = f"below {wording.length(shortest)}" if place.low <= 0 else wording.about_length(place.low)
    high = "never" if math.isinf(place.high) else wording.about_length(place.high)
    return f"{wording.about_length(place.length)} [{low}, {high}]"
