"""One log-log panel: lines over lengths with their intervals, named at their ends, and how steep N and N² are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from bench import wording
from bench.report.colours import FAINT, GRID, INK, PAPER, SHADE
from bench.report.labels import LINE_INCHES, shown, spread
from bench.report.styles import Style, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from bench.cells import Contender
    from bench.stats import Estimate

MARGIN_INCHES = 0.30  # between a panel and the names beside it

_FEW_DECADES = 800
_MOST_LENGTHS = 8
_DOTTED = (0, (1, 1.5))


@dataclass(frozen=True, slots=True)
class Curve:
    """What one contender has over lengths."""

    contender: Contender
    points: Mapping[int, Estimate]


@dataclass(frozen=True, slots=True)
class Reference:
    """Something to compare with, drawn as a broad shade."""

    name: str
    points: Mapping[int, float] = field(default_factory=dict)


def panel(
    axes: Axes,
    curves: Sequence[Curve],
    lengths: Sequence[int],
    limits: tuple[float, float],
    *,
    beside: Reference,
    limit: tuple[float, str] | None,
    inches: tuple[float, float],
) -> None:
    """Draw on ``axes``, of which the y axis is set up but for its ``limits``; ``inches`` are their width and height."""
    axes.set_xscale("log", base=2)
    room = (lengths[-1] / lengths[0]) ** 0.04
    axes.set_xlim(lengths[0] / room, lengths[-1] * room)
    axes.set_ylim(*limits)
    axes.xaxis.set_major_locator(FixedLocator(ticks(lengths)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.length(round(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    if limit is not None and limits[0] < limit[0] < limits[1]:
        axes.axhline(limit[0], color=INK, linewidth=0.8, linestyle=(0, (6, 3)))
        across = axes.get_yaxis_transform()
        axes.text(0.01, limit[0], limit[1], transform=across, va="bottom", fontsize=8, color=INK)
    _slopes(axes, curves, None if limit is None else limit[0])
    if beside.points:
        x, y = list(beside.points), list(beside.points.values())
        axes.plot(x, y, color=SHADE, linewidth=5, zorder=1.5, solid_capstyle="round")
    for curve in curves:
        _curve(axes, curve)
    _name_ends(axes, curves, beside, *inches)


def plain(axis: Axis, base: int, limits: tuple[float, float], tick: Callable[[float], str], *, most: int) -> None:
    """A logarithmic axis with ticks at powers of the base; of ten also at 2 and 5, where it spans little."""
    axes = axis.axes
    if axis is axes.yaxis:
        axes.set_yscale("log", base=base)
    steps = (1.0, 2.0, 5.0) if base == 10 and limits[1] < _FEW_DECADES * limits[0] else (1.0,)  # noqa: PLR2004  # of ten
    axis.set_major_locator(LogLocator(base=base, subs=steps, numticks=most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axis.set_minor_locator(NullLocator())
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(color=FAINT, labelcolor=INK, length=3)


def ticks(lengths: Sequence[int]) -> list[int]:
    """Of the lengths, at most eight, powers of two first, and none so near another that their texts would touch."""
    chosen = list(lengths)
    if len(chosen) > _MOST_LENGTHS:
        powers = [length for length in chosen if length & (length - 1) == 0]
        chosen = powers if len(powers) > 1 else chosen
        chosen = chosen[:: math.ceil(len(chosen) / _MOST_LENGTHS)]
    apart: list[int] = []
    for length in chosen:
        if not apart or math.log(length / apart[-1]) > 0.09 * math.log(lengths[-1] / lengths[0]):
            apart.append(length)
    return apart


def _slopes(axes: Axes, curves: Sequence[Curve], limit: float | None) -> None:
    """In the emptier of the lower right and the upper left corner."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    aspect = math.log(x1 / x0) / math.log(y1 / y0)  # how far N rises across the axes, in fractions of both
    middle = math.sqrt(x0 * x1)
    below = [_height(point.value, y0, y1) for curve in curves for n, point in curve.points.items() if n >= middle]
    above = [_height(point.value, y0, y1) for curve in curves for n, point in curve.points.items() if n <= middle]
    if limit is not None and limit < y1:
        above.append(_height(limit, y0, y1) + 0.05)
    under, over = min(below, default=1.0), 1 - max(above, default=0.0)
    run = min(0.36, max(0.12, (max(under, over) - 0.12) / (2 * aspect)))
    x, y = (0.96 - run, 0.04) if under >= over else (0.04, 0.93 - 2 * aspect * run)
    for power, name in ((1, "N"), (2, "N²")):
        end = y + power * aspect * run
        of_axes: dict[str, Any] = {"transform": axes.transAxes, "color": FAINT, "zorder": 1}
        axes.plot([x, x + run], [y, end], linewidth=1.0, linestyle=_DOTTED, **of_axes)
        axes.text(x + run + 0.008, end, name, fontsize=7.5, va="center", **of_axes)


def _height(value: float, low: float, high: float) -> float:
    """Where a value lies on a logarithmic axis, as a fraction of it."""
    return math.log(value / low) / math.log(high / low)


def _curve(axes: Axes, curve: Curve) -> None:
    look = style(curve.contender)
    lengths = sorted(curve.points)
    values = [curve.points[length].value for length in lengths]
    axes.plot(lengths, values, **look_of(look), linestyle=look.line, linewidth=1.5, zorder=3)
    for length, estimate in curve.points.items():
        if estimate.low and estimate.high:
            axes.vlines(length, estimate.low, estimate.high, color=look.colour, linewidth=3.5, alpha=0.35, zorder=2)


def look_of(look: Style) -> dict[str, Any]:
    """The style as matplotlib's arguments, without the line."""
    face = PAPER if look.is_open else look.colour
    size = 8.0 if look.marker == "*" else 5.5
    return {"color": look.colour, "marker": look.marker, "markersize": size, "markerfacecolor": face}


# --- names ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """A point to be named, in fractions of the axes; the height at which its name is ``wanted``; and the name."""

    x: float
    y: float
    wanted: float
    name: str
    look: Style | None
    is_early: bool = False
    is_faint: bool = False


def _name_ends(axes: Axes, curves: Sequence[Curve], beside: Reference, width: float, height: float) -> None:
    """Each curve at its end."""
    latest = max(max(curve.points) for curve in curves)
    ends = [_end(axes, curve, latest) for curve in curves]
    if beside.points:
        x, y = within(axes, *list(beside.points.items())[-1])
        ends.append(End(x, y, y, beside.name, None))
    name_beside(axes, ends, width, height)


def name_beside(axes: Axes, ends: Sequence[End], width: float, height: float) -> None:
    """Names at the right, spread so that none covers another, each tied to what it names; sizes in inches."""
    ends = sorted(ends, key=lambda end: (end.wanted, end.name))
    heights = spread([end.wanted for end in ends], LINE_INCHES / height, 0.0, 1.0)
    marker, words, half = 1 + MARGIN_INCHES / width, 1 + (MARGIN_INCHES + 0.1) / width, 0.05 / width
    of_axes: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    for end, y in zip(ends, heights, strict=True):
        colour = end.look.colour if end.look else FAINT
        line = _DOTTED if end.is_early else "-"
        faint = 0.35 if end.is_faint else 1.0
        axes.plot([end.x, marker - half], [end.y, y], color=colour, linewidth=0.6, linestyle=line, alpha=0.7 * faint,
                  zorder=2, **of_axes)  # fmt: skip
        if end.look:
            axes.plot([marker], [y], **look_of(end.look), alpha=faint, **of_axes)
        else:
            axes.plot([marker - half, marker + half], [y, y], color=SHADE, linewidth=5, solid_capstyle="round",
                      **of_axes)  # fmt: skip
        ink = FAINT if end.is_faint else INK
        axes.text(words, y, end.name, va="center", fontsize=8.5, color=ink, **of_axes)


def _end(axes: Axes, curve: Curve, latest: int) -> End:
    """A line that ends before the others is named, with its last length, where it was heading."""
    *before, last = sorted(curve.points)
    x, y = within(axes, last, curve.points[last].value)
    name, look = shown(curve.contender.label), style(curve.contender)
    if last == latest:
        return End(x, y, y, name, look)
    wanted = y
    if before:
        x_before, y_before = within(axes, before[-1], curve.points[before[-1]].value)
        wanted += (y - y_before) / (x - x_before) * (1 - x)
    return End(x, y, wanted, f"{name}, to {wording.length(last)}", look, is_early=True)


def within(axes: Axes, length: float, value: float) -> tuple[float, float]:
    """A point in fractions of the axes."""
    x, y = axes.transAxes.inverted().transform(axes.transData.transform((length, value)))
    return float(x), float(y)
