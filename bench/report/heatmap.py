"""How many times faster than the baseline everything is, at a glance: contenders down, workloads and lengths across.

Blue is faster, orange slower; every cell says its number, and those of slower ones are underlined: without colour, deep
is much faster and underlined slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from bench import wording
from bench.cells import Cell, Contender
from bench.report import colours
from bench.report.canvas import TITLE_INCHES, Picture
from bench.report.labels import CHARACTER_INCHES, shown
from bench.report.panels import ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bench.stats import Estimate

_MOST_COLUMNS = 24
_WIDTH, _HEIGHT, _HEADER, _FOOT = 0.5, 0.26, 0.62, 0.42
_GAP = 0.12  # between workloads, and between exact and approximate
_BOLD_INCHES = 0.075  # what a letter takes
_DEEPEST = 4.0  # powers of two
_LINE_BELOW, _LINE_WIDTH = 0.085, 0.26  # inches: under a number, from the middle of its cell
_ONE = 0.995  # and more is written as 1.0
_LEGEND = "blue: faster · orange, underlined: slower · – unsupported · oom: out of memory"
_WORDS = {"out_of_memory": "oom", "timeout": "late", "incorrect": "wrong", "fell_back": "other", "unsupported": "–"}

Workload = tuple[str, str]


def draw(cells: Sequence[Cell], speedups: Mapping[Cell, Estimate], over: str) -> list[Picture]:
    """Of the cells of one ground; several pictures where the lengths of all workloads do not fit beside each other."""
    at = {(cell.contender, (cell.mask, cell.mode), cell.length): cell for cell in cells}
    pages = list(_pages(_columns(cells, speedups)))
    found = []
    for number, page in enumerate(pages, start=1):
        shown_here = [
            contender
            for contender in dict.fromkeys(cell.contender for cell in cells)
            if any(at.get((contender, workload, n)) in speedups for workload, lengths in page for n in lengths)
        ]
        counted = f" ({number} of {len(pages)})" if len(pages) > 1 else ""
        title = f"How many times as fast as {shown(over)}{counted}"
        found.append(Picture(partial(_figure, shown_here, page, at, speedups), title))
    return found


def _columns(cells: Sequence[Cell], speedups: Mapping[Cell, Estimate]) -> list[tuple[Workload, list[int]]]:
    lengths: dict[Workload, set[int]] = {}
    for cell in cells:
        if cell in speedups:
            lengths.setdefault((cell.mask, cell.mode), set()).add(cell.length)
    return [(workload, ticks(sorted(some))) for workload, some in lengths.items()]


def _pages(columns: Sequence[tuple[Workload, list[int]]]) -> Iterator[list[tuple[Workload, list[int]]]]:
    page: list[tuple[Workload, list[int]]] = []
    for workload, lengths in columns:
        if page and sum(len(some) for _, some in page) + len(lengths) > _MOST_COLUMNS:
            yield page
            page = []
        page.append((workload, lengths))
    if page:
        yield page


def _figure(
    contenders: Sequence[Contender],
    columns: Sequence[tuple[Workload, list[int]]],
    at: Mapping[tuple[Contender, Workload, int], Cell],
    speedups: Mapping[Cell, Estimate],
) -> Figure:
    names = max(len(shown(contender.label)) for contender in contenders) * CHARACTER_INCHES + 0.35
    has_both = len({contender.exact for contender in contenders}) > 1
    height = len(contenders) * _HEIGHT + _GAP * has_both
    places = _places(columns)
    width = places[-1][2] + max(_WIDTH, max(len(shown(word)) for word in places[-1][0]) * _BOLD_INCHES)
    least_width = max(width, 3.4)
    figure = Figure(figsize=(names + least_width + 0.25, TITLE_INCHES + _HEADER + height + _FOOT))
    total_width, total_height = figure.get_size_inches()
    axes = figure.add_axes((names / total_width, _FOOT / total_height, width / total_width, height / total_height))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    boxes, faces = [], []
    lines: list[list[tuple[float, float]]] = []
    inks: list[str] = []
    for row, contender in enumerate(contenders):
        top = height - row * _HEIGHT - (_GAP if has_both and not contender.exact else 0)
        label = shown(contender.label) if contender.exact else f"≈ {shown(contender.label)}"
        axes.text(-0.1, top - _HEIGHT / 2, label, ha="right", va="center", fontsize=8.5)
        for workload, length, x in places:
            cell = at.get((contender, workload, length))
            faster = speedups.get(cell) if cell else None
            middle = (x + _WIDTH / 2, top - _HEIGHT / 2)
            if faster is None:
                word = "" if cell is None else _WORDS.get(cell.status, "·")
                axes.text(*middle, word, ha="center", va="center", fontsize=7, color=colours.FAINT)
                continue
            face, ink = colours.diverging(math.log2(faster.value) / _DEEPEST)
            boxes.append(_box(x, top))
            faces.append(face)
            axes.text(*middle, _number(faster.value), ha="center", va="center", fontsize=8, color=ink)
            if is_slower(faster.value):
                lines.append(_line(*middle))
                inks.append(ink)
    axes.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors=colours.PAPER, linewidths=1.2, zorder=0))
    axes.add_collection(LineCollection(lines, colors=inks, linewidths=0.9, zorder=1))
    _header(axes, places, height)
    figure.text(
        names / total_width,
        0.13 / total_height,
        _LEGEND,
        fontsize=7.5,
        color=colours.FAINT,
        va="center",
    )
    return figure


def _places(columns: Sequence[tuple[Workload, list[int]]]) -> list[tuple[Workload, int, float]]:
    """Where each column begins, in inches; a workload has room for its name."""
    found, x = [], 0.0
    for workload, lengths in columns:
        end = x + max(len(lengths) * _WIDTH, max(len(shown(word)) for word in workload) * _BOLD_INCHES)
        for length in lengths:
            found.append((workload, length, x))
            x += _WIDTH
        x = end + _GAP
    return found


def _box(x: float, top: float) -> list[tuple[float, float]]:
    return [(x, top), (x + _WIDTH, top), (x + _WIDTH, top - _HEIGHT), (x, top - _HEIGHT)]


def _line(x: float, y: float) -> list[tuple[float, float]]:
    return [(x - _LINE_WIDTH / 2, y - _LINE_BELOW), (x + _LINE_WIDTH / 2, y - _LINE_BELOW)]


def is_slower(value: float) -> bool:
    """As it is written: what rounds to 1.0 is not."""
    return value < _ONE


def _header(axes: Axes, places: Sequence[tuple[Workload, int, float]], height: float) -> None:
    """Lengths above the columns, workloads above the lengths."""
    begins: dict[Workload, float] = {}
    ends: dict[Workload, float] = {}
    for workload, length, x in places:
        axes.text(x + _WIDTH / 2, height + 0.1, wording.length(length), ha="center", va="center", fontsize=8)
        begins.setdefault(workload, x)
        ends[workload] = x + _WIDTH
    for (mask, mode), begin in begins.items():
        axes.text(begin, height + 0.5, shown(mask), fontsize=8.5, fontweight="bold", va="center")
        axes.text(begin, height + 0.33, mode, fontsize=8.5, va="center")
        line = [begin, ends[mask, mode]]
        axes.plot(line, [height + 0.21] * 2, color=colours.SHADE, linewidth=0.8, clip_on=False)


def _number(value: float) -> str:
    """At most four characters."""
    if value >= 9.95:  # noqa: PLR2004  # two digits before the point say enough
        return f"{value:.0f}" if value < 9999.5 else f"{value / 1000:.0f}k"  # noqa: PLR2004
    return f"{value:.2f}" if is_slower(value) else f"{value:.1f}"
