"""Speed or memory against fidelity: a panel a workload, at the length at which most approximations were timed.

What is neither closer to exact attention nor cheaper than something else is faint; a line joins the rest. Beyond the
error of the plain mean of the values, nothing is gained by looking at keys at all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bench import wording
from bench.report import colours
from bench.report.canvas import TITLE_INCHES, Picture
from bench.report.labels import CHARACTER_INCHES, LINE_INCHES, shown
from bench.report.panels import MARGIN_INCHES, End, look_of, name_beside, within
from bench.report.styles import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bench.cells import Cell

_LEFT, _AXES, _HEAD, _BOTTOM, _FOOT, _LEAST_HEIGHT = 0.85, 2.9, 0.3, 0.55, 0.2, 2.5
_COLUMNS, _MOST_PANELS = 2, 6
_SHORT_TICK = 6  # characters beside an axis that need no more room to its left
_FARTHEST = 3.0  # relative errors beyond are drawn there


@dataclass(frozen=True, slots=True)
class Cost:
    """What is to be saved: in words, as a gain over something, over which exact one; and of a cell."""

    name: str
    gain: str
    best_exact: str
    of: Callable[[Cell], float | None]


SPEED = Cost(
    "Speed", "times as fast as", "the fastest exact", lambda cell: cell.seconds.value if cell.seconds else None
)
MEMORY = Cost("Memory", "times as lean as", "the leanest exact", lambda cell: cell.peak_bytes)


@dataclass(frozen=True, slots=True)
class Front:
    """Cells of one workload and length with their error and gain; those that nothing dominates, by error."""

    title: str
    axis: str
    points: Mapping[Cell, tuple[float, float]]
    best: Sequence[Cell]
    floor: float | None


def front(cells: Sequence[Cell], cost: Cost = SPEED, *, source: str = "") -> Front | None:
    """Of one workload; None where no approximation has both a cost and a fidelity.

    The gain is over the cheapest exact one at that length, or the dearest of all where there is none, which is named
    then. ``source``: what the title begins with.
    """
    told = told_at_most_lengths(cells)
    costs = {cell: value for cell in told if (value := cost.of(cell))}
    if all(cell.contender.exact or cell.contender.is_floor for cell in costs):
        return None
    unit = unit_cell(costs)
    axis = f"{cost.gain} {cost.best_exact if unit.contender.exact else shown(unit.contender.label)}"
    points = {
        cell: (0.0 if cell.contender.exact else cell.relative_error or 0.0, costs[unit] / value)
        for cell, value in costs.items()
        if not cell.contender.is_floor
    }
    best = [cell for cell in points if not any(beats(points[other], points[cell]) for other in points)]
    best.sort(key=lambda cell: (points[cell], cell.contender.order))
    floors = [cell.relative_error for cell in told if cell.contender.is_floor and cell.relative_error is not None]
    first = told[0]
    title = f"{shown(first.mask)}, {first.mode}, N = {wording.length(first.length)}"
    return Front(f"{shown(source)} · {title}" if source else title, axis, points, best, min(floors, default=None))


def told_at_most_lengths(cells: Sequence[Cell]) -> list[Cell]:
    """Timed cells of one workload that are exact or have a fidelity, at the length with most approximations."""
    told = [cell for cell in cells if cell.seconds and (cell.contender.exact or cell.relative_error is not None)]
    counts = Counter(cell.length for cell in told if not cell.contender.exact and not cell.contender.is_floor)
    if not counts:
        return []
    length = max(counts, key=lambda length: (counts[length], length))
    return [cell for cell in told if cell.length == length]


def unit_cell(costs: Mapping[Cell, float]) -> Cell:
    """The cheapest exact one, or else the dearest of all but floors."""
    exact = [cell for cell in costs if cell.contender.exact]
    others = [cell for cell in costs if not cell.contender.is_floor]
    return min(exact, key=costs.__getitem__) if exact else max(others, key=costs.__getitem__)


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Of error and gain: cheaper, and no further from exact attention but for a hundredth; or as cheap and closer."""
    closer = one[0] < other[0] if one[1] == other[1] else one[0] <= 1.01 * other[0]
    return one[1] >= other[1] and closer


def draw(fronts: Sequence[Front], cost: str = SPEED.name, *, most: int = _MOST_PANELS) -> Picture | None:
    """A panel for each of the first ``most``."""
    fronts = fronts[:most]
    if not fronts:
        return None
    return Picture(partial(_figure, fronts), f"{cost} against fidelity: upper left is best")


def _figure(fronts: Sequence[Front]) -> Figure:
    columns = min(_COLUMNS, len(fronts))
    rows = math.ceil(len(fronts) / columns)
    names = max(len(shown(cell.contender.label)) for found in fronts for cell in found.points) * CHARACTER_INCHES + 0.25
    height = max(_LEAST_HEIGHT, (max(len(found.points) for found in fronts) + 1) * LINE_INCHES)
    row = _HEAD + height + _BOTTOM
    edge = _LEFT + max(0, max(map(_longest_tick, fronts)) - _SHORT_TICK) * CHARACTER_INCHES
    column = edge + _AXES + MARGIN_INCHES + names
    width, total = columns * column, TITLE_INCHES + rows * row + _FOOT
    figure = Figure(figsize=(width, total))
    for number, found in enumerate(fronts):
        down, across = divmod(number, columns)
        left, bottom = across * column + edge, total - TITLE_INCHES - (down + 1) * row + _BOTTOM
        axes = figure.add_axes((left / width, bottom / total, _AXES / width, height / total))
        _panel(axes, found, height)
    if any(found.floor is not None for found in fronts):
        words = "shaded: no closer to exact attention than the plain mean of the values"
        figure.text(edge / width, 0.13 / total, words, fontsize=7.5, color=colours.FAINT, va="center")
    return figure


def _panel(axes: Axes, found: Front, height: float) -> None:
    errors = [min(error, _FARTHEST) for error, _ in found.points.values()]
    furthest = max([*errors, 0.5, found.floor or 0.0]) * 1.08
    axes.set_title(found.title, loc="left", fontsize=9)
    axes.set_xlim(-0.05 * furthest, furthest)
    axes.set_yscale("log", base=2)
    axes.set_ylim(*_limits(found))
    axes.set_xlabel("relative error to exact attention")
    axes.set_ylabel(found.axis)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _error_tick(value)))
    low, high = axes.get_ylim()
    if high / low > 4 or high < 0.5 or low > 2:  # noqa: PLR2004  # two powers of two, or far from one
        axes.yaxis.set_major_locator(LogLocator(base=2, numticks=8))
    else:
        axes.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _gain_tick(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(visible=True, color=colours.GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    if found.floor is not None:
        axes.axvspan(min(found.floor, furthest), furthest, color=colours.GRID, alpha=0.6, linewidth=0, zorder=0)
    corners = [(min(found.points[cell][0], _FARTHEST), found.points[cell][1]) for cell in found.best]
    axes.step(*zip(*corners, strict=True), where="post", color=colours.SHADE, linewidth=3, zorder=1.5)
    ends = []
    for cell, (error, speed) in found.points.items():
        is_best = cell in found.best
        look = style(cell.contender)
        at = min(error, _FARTHEST), speed
        axes.plot(*([value] for value in at), **look_of(look), alpha=1.0 if is_best else 0.35, zorder=3)
        x, y = within(axes, *at)
        ends.append(End(x, y, y, shown(cell.contender.label), look, is_faint=not is_best))
    name_beside(axes, ends, _AXES, height)


def _limits(found: Front) -> tuple[float, float]:
    """Of the gains, with some room."""
    gains = [gain for _, gain in found.points.values()]
    room = max((max(gains) / min(gains)) ** 0.06, 1.2)
    return min(gains) / room, max(gains) * room


def _gain_tick(value: float) -> str:
    """0.25×, 1×, 2048×: what is above one is whole, or has two digits."""
    return f"{value:.3g}×" if value < 1000 else f"{value:.0f}×"  # noqa: PLR2004  # more has an exponent


def _longest_tick(found: Front) -> int:
    """Characters that a power of two on the axis of gains may take."""
    first, last = (math.log2(limit) for limit in _limits(found))
    return max(len(_gain_tick(2.0**power)) for power in range(math.floor(first), math.ceil(last) + 1))


def _error_tick(value: float) -> str:
    if value == 0:
        return "exact"
    return f"{value:g} or more" if value == _FARTHEST else f"{value:g}"
