"""Several figures of each contender on one logarithmic axis, a row a contender: where time goes, what memory holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from bench.cells import Contender
from bench.report import colours
from bench.report.canvas import TITLE_INCHES, Picture
from bench.report.labels import CHARACTER_INCHES, shown
from bench.report.panels import plain

_ROW, _AXES, _KEY, _BOTTOM = 0.25, 5.4, 0.3, 0.55


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the figures: what it is called and looks like."""

    name: str
    colour: str
    marker: str


@dataclass(frozen=True, slots=True)
class Strips:
    """Rows from above, and an axis with its unit; ``line`` is a value to compare with, and its name."""

    rows: Sequence[tuple[Contender, Mapping[str, float]]]
    kinds: Sequence[Kind]
    axis: str
    tick: Callable[[float], str]
    base: Literal[2, 10]
    line: tuple[float, str] | None = None


def draw(strips: Strips, title: str) -> Picture | None:
    """None where there is nothing to show."""
    rows = [(contender, values) for contender, values in strips.rows if values]
    return Picture(partial(_figure, strips, rows), title) if rows else None


def _figure(strips: Strips, rows: Sequence[tuple[Contender, Mapping[str, float]]]) -> Figure:
    names = max(len(_name(contender)) for contender, _ in rows) * CHARACTER_INCHES + 0.3
    height = (len(rows) + 0.6) * _ROW
    width, total = names + _AXES + 0.35, TITLE_INCHES + _KEY + height + _BOTTOM
    figure = Figure(figsize=(width, total))
    axes = figure.add_axes((names / width, _BOTTOM / total, _AXES / width, height / total))
    values = [value for _, told in rows for value in told.values()] + ([strips.line[0]] if strips.line else [])
    room = max((max(values) / min(values)) ** 0.04, 1.2)
    limits = min(values) / room, max(values) * room
    axes.set_xscale("log", base=strips.base)
    axes.set_xlim(*limits)
    axes.set_ylim(-0.8, len(rows) - 0.2)
    plain(axes.xaxis, strips.base, limits, strips.tick, most=8)
    axes.yaxis.set_major_locator(FixedLocator(range(len(rows))))
    axes.yaxis.set_ticklabels([_name(contender) for contender, _ in reversed(rows)])
    axes.set_xlabel(strips.axis)
    if strips.line is not None:
        _mark(axes, *strips.line)
    for row, (_, told) in enumerate(reversed(rows)):
        axes.hlines(row, min(told.values()), max(told.values()), color=colours.SHADE, linewidth=1.2, zorder=1)
        for kind in strips.kinds:
            if kind.name in told:
                axes.plot([told[kind.name]], [row], color=kind.colour, marker=kind.marker, markersize=6, zorder=3,
                          linestyle="none")  # fmt: skip
    _key(figure, strips, rows, (names, total - TITLE_INCHES - 0.02))
    return figure


def _mark(axes: Axes, value: float, name: str) -> None:
    """A line across all rows, named on that side of it where there is more room."""
    axes.axvline(value, color=colours.INK, linewidth=0.8, linestyle=(0, (6, 3)))
    at, _ = axes.transAxes.inverted().transform(axes.transData.transform((value, 0)))
    side, words = ("right", f"{name} ") if at > 0.5 else ("left", f" {name}")  # noqa: PLR2004  # the middle
    axes.text(value, 1.0, words, transform=axes.get_xaxis_transform(), fontsize=7.5, va="top", ha=side,
              color=colours.INK)  # fmt: skip


def _name(contender: Contender) -> str:
    return shown(contender.label) if contender.exact else f"≈ {shown(contender.label)}"


def _key(
    figure: Figure,
    strips: Strips,
    rows: Sequence[tuple[Contender, Mapping[str, float]]],
    at: tuple[float, float],
) -> None:
    """Names of the kinds that are shown, each behind its marker, above the panel."""
    (x, y), (width, total) = at, figure.get_size_inches()
    key = figure.add_axes((0, 0, 1, 1), zorder=-1)
    key.set_xlim(0, width)
    key.set_ylim(0, total)
    key.axis("off")
    for kind in strips.kinds:
        if any(kind.name in told for _, told in rows):
            key.plot([x + 0.06], [y], color=kind.colour, marker=kind.marker, markersize=6, linestyle="none")
            key.text(x + 0.17, y, kind.name, fontsize=8.5, va="center")
            x += 0.4 + len(kind.name) * CHARACTER_INCHES
