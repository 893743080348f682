"""Pictures of one workload: time and memory against the length, log-log, or as dots where there is one length.

Exact and approximate attention have a panel each, on the same scale; the best of the exact ones is drawn through the
approximate panel for comparison. Lines are named at their ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from bench import wording
from bench.report.canvas import TITLE_INCHES, Picture
from bench.report.colours import INK
from bench.report.labels import CHARACTER_INCHES, LINE_INCHES, shown
from bench.report.panels import MARGIN_INCHES, Curve, Reference, look_of, panel, plain
from bench.report.styles import style

# Inches.
_LEFT, _AXES, _PANEL_TITLE, _BOTTOM = 1.05, 3.1, 0.22, 0.55
_LEAST_HEIGHT = 2.7
_ROW = 0.24

_ONE_PANEL = 8  # lines, up to which one panel shows all


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is drawn: what its axis says, how a value is written there and beside a dot, in powers of which base.

    ``best_exact`` names the least of the exact ones; ``limit`` is a ceiling to show if it is near.
    """

    axis: str
    tick: Callable[[float], str]
    value: Callable[[float], str]
    base: Literal[2, 10]
    best_exact: str
    limit: float | None = None
    limit_name: str = ""


def tick_of(scales: Sequence[tuple[float, str]]) -> Callable[[float], str]:
    """How values on an axis are written, in units of the largest scale that they reach."""

    def tick(value: float) -> str:
        scale, unit = next((pair for pair in scales if value >= 0.999 * pair[0]), scales[-1])
        return f"{value / scale:.3g} {unit}"

    return tick


TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))

TIME = Quantity("median time of a call", tick_of(TIMES), wording.duration, 10, "fastest exact")


def memory(limit_bytes: float | None = None, limit_name: str = "") -> Quantity:
    """Peak memory, with the device's as a limit."""
    size = tick_of(SIZES)
    return Quantity("peak memory of a call", size, size, 2, "least exact", limit_bytes, limit_name)


def draw(curves: Sequence[Curve], quantity: Quantity, title: str, axis: str = "length N") -> Picture | None:
    """The picture of one quantity in one workload; ``axis`` names the length that varies. None without any point."""
    curves = [curve for curve in curves if curve.points]
    lengths = sorted({length for curve in curves for length in curve.points})
    if not lengths:
        return None
    if len(lengths) > 1:
        return Picture(lambda: _lines(curves, quantity, lengths, axis), title)
    return Picture(lambda: _dots(curves, quantity), f"{title} · {axis} = {wording.length(lengths[0])}")


def _limits(curves: Iterable[Curve], quantity: Quantity) -> tuple[float, float]:
    """Of the axis: all values and intervals, some room, and the limit if it is no further away than sixteenfold."""
    ends = [
        bound
        for curve in curves
        for estimate in curve.points.values()
        for bound in (estimate.value, estimate.low, estimate.high)
        if bound
    ]
    low, high = min(ends), max(ends)
    if quantity.limit and high < quantity.limit < 16 * high:
        high = quantity.limit
    room = max((high / low) ** 0.05, 1.25)
    return low / room, high * room


# --- lines ----------------------------------------------------------------------------------------------------


def _lines(curves: Sequence[Curve], quantity: Quantity, lengths: Sequence[int], axis: str) -> Figure:
    groups = _groups(curves)
    axes_width = _AXES if len(groups) > 1 else 1.6 * _AXES
    widths = [_LEFT + axes_width + MARGIN_INCHES + _longest(members, quantity) for _, members in groups]
    height = max(_LEAST_HEIGHT, (max(len(members) for _, members in groups) + 2) * LINE_INCHES)
    top = TITLE_INCHES + _PANEL_TITLE * any(name for name, _ in groups)
    width, total = sum(widths), top + height + _BOTTOM
    figure = Figure(figsize=(width, total))
    limits = _limits(curves, quantity)
    for number, (name, members) in enumerate(groups):
        left = sum(widths[:number]) + _LEFT
        axes = figure.add_axes((left / width, _BOTTOM / total, axes_width / width, height / total))
        axes.set_title(name, loc="left", fontsize=9, color=INK)
        axes.set_xlabel(f"{axis} (tokens)", color=INK)
        axes.set_ylabel(quantity.axis, color=INK)
        beside = Reference(quantity.best_exact, _best_exact(curves) if len(groups) > 1 and number else {})
        limit = (quantity.limit, quantity.limit_name) if quantity.limit else None
        plain(axes.yaxis, quantity.base, limits, quantity.tick, most=9)
        panel(axes, members, lengths, limits, beside=beside, limit=limit, inches=(axes_width, height))
    return figure


def _groups(curves: Sequence[Curve]) -> list[tuple[str, list[Curve]]]:
    exact = [curve for curve in curves if curve.contender.exact]
    approximate = [curve for curve in curves if not curve.contender.exact]
    if not exact or not approximate:
        return [("exact" if exact else "approximate", exact or approximate)]
    if len(curves) <= _ONE_PANEL:
        return [("", [*exact, *approximate])]
    return [("exact", exact), ("approximate", approximate)]


def _longest(curves: Sequence[Curve], quantity: Quantity) -> float:
    """Inches that the names beside a panel take."""
    latest = max(max(curve.points) for curve in curves)
    names = [len(shown(curve.contender.label)) + len(", to 128k") * (max(curve.points) < latest) for curve in curves]
    return max(len(quantity.best_exact), *names) * CHARACTER_INCHES + 0.25


def _best_exact(curves: Iterable[Curve]) -> dict[int, float]:
    best: dict[int, float] = {}
    for curve in curves:
        if curve.contender.exact:
            for length, estimate in curve.points.items():
                best[length] = min(best.get(length, math.inf), estimate.value)
    return dict(sorted(best.items()))


# --- dots -----------------------------------------------------------------------------------------------------


def _dots(curves: Sequence[Curve], quantity: Quantity) -> Figure:
    """One length: a row a contender, the least on top, with its interval and its value."""
    rows = sorted(curves, key=lambda curve: (-next(iter(curve.points.values())).value, curve.contender.order))
    names = max(len(shown(curve.contender.label)) for curve in rows) * CHARACTER_INCHES + 0.3
    height, axes_width = (len(rows) + 0.6) * _ROW, 5.2
    width, total = names + axes_width + 1.1, TITLE_INCHES + height + _BOTTOM
    figure = Figure(figsize=(width, total))
    axes = figure.add_axes((names / width, _BOTTOM / total, axes_width / width, height / total))
    limits = _limits(rows, quantity)
    axes.set_xscale("log", base=quantity.base)
    axes.set_xlim(*limits)
    axes.set_ylim(-0.8, len(rows) - 0.2)
    plain(axes.xaxis, quantity.base, limits, quantity.tick, most=7)
    axes.yaxis.set_major_locator(FixedLocator(range(len(rows))))
    axes.yaxis.set_ticklabels([shown(curve.contender.label) for curve in rows])
    axes.set_xlabel(quantity.axis, color=INK)
    for row, curve in enumerate(rows):
        look, (estimate,) = style(curve.contender), curve.points.values()
        if estimate.low and estimate.high:
            axes.hlines(row, estimate.low, estimate.high, color=look.colour, linewidth=4, alpha=0.35)
        axes.plot([estimate.value], [row], **look_of(look))
        beside = axes.get_yaxis_transform()
        axes.text(1.02, row, quantity.value(estimate.value), transform=beside, va="center", fontsize=8.5, color=INK)
    return figure
