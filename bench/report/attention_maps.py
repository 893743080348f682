"""Which keys each query really attends to, as it was recorded: a small panel a variant, one exact for all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from bench import wording
from bench.report import colours
from bench.report.canvas import TITLE_INCHES, Picture
from bench.report.labels import CHARACTER_INCHES, NAME_POINTS, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bench.cells import Cell

_SIDE, _GAP, _NAME, _BOTTOM = 1.15, 0.22, 0.24, 0.32
_COLUMNS, _MOST = 6, 24
_NAME_POINTS, _NAME_ROOM = 7.5, _SIDE + _GAP - 0.16  # a name may be as wide as its panel and most of the gap
_LEVELS = 12
_POINTS_PER_INCH = 72

Map = Sequence[str]


def draw(cells: Sequence[Cell]) -> Picture | None:
    """At the mask and length with the most maps; None where no record has one."""
    maps = {cell: found for cell in cells for found in [_map(cell)] if found is not None}
    counts = Counter((cell.mask, cell.length) for cell in maps if not cell.contender.exact)
    if not counts:
        return None
    place = max(counts, key=lambda place: (counts[place], place[1]))
    there = [cell for cell in maps if (cell.mask, cell.length) == place]
    exact = [cell for cell in there if cell.contender.exact][:1]
    chosen = [(cell, maps[cell]) for cell in (*exact, *(cell for cell in there if not cell.contender.exact))][:_MOST]
    title = f"Who attends to whom · {shown(place[0])}, N = {wording.length(place[1])}, one head"
    return Picture(partial(_figure, chosen), title)


def _map(cell: Cell) -> Map | None:
    return next((outcome.attention_map for outcome in cell.measured if outcome.attention_map), None)


def _figure(chosen: Sequence[tuple[Cell, Map]]) -> Figure:
    columns = min(_COLUMNS, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    width = max(columns * (_SIDE + _GAP) + _GAP, 5.2)
    total = TITLE_INCHES + rows * (_NAME + _SIDE) + _BOTTOM
    figure = Figure(figsize=(width, total))
    for number, (cell, found) in enumerate(chosen):
        down, across = divmod(number, columns)
        left, top = _GAP + across * (_SIDE + _GAP), total - TITLE_INCHES - down * (_NAME + _SIDE) - _NAME
        axes = figure.add_axes((left / width, (top - _SIDE) / total, _SIDE / width, _SIDE / total))
        name = "exact" if cell.contender.exact else shown(cell.contender.label)
        axes.set_title(name, fontsize=_name_points(name), pad=3, loc="left")
        _panel(axes, found)
    words = "queries from above, blocks of keys from the left; the deeper, the more of a query's weight"
    figure.text(_GAP / width, 0.13 / total, words, fontsize=7.5, color=colours.FAINT, va="center")
    return figure


def _name_points(name: str) -> float:
    """The size of a name: smaller for a long one, so that it stays whole."""
    return min(_NAME_POINTS, NAME_POINTS * _NAME_ROOM / (CHARACTER_INCHES * len(name)))


def _panel(axes: Axes, found: Map) -> None:
    """Runs of cells of one depth are one stroke, and strokes of one depth one path: a picture stays small."""
    height = len(found)
    across = max(len(row) for row in found)
    axes.set_xlim(0, across)
    axes.set_ylim(height, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(colours.SHADE)
    strokes: dict[int, list[tuple[float, float]]] = {}
    for number, row in enumerate(found):
        start = 0
        for level, run in groupby(row, key=lambda digit: round(int(digit, 36) / 35 * _LEVELS)):
            end = start + len(list(run))
            if level:
                strokes.setdefault(level, []).extend([(start, number + 0.5), (end, number + 0.5)])
            start = end
    thick = _SIDE * _POINTS_PER_INCH / height * 1.15  # no hairlines between rows
    for level, points in sorted(strokes.items()):
        path = Path(points, [Path.MOVETO, Path.LINETO] * (len(points) // 2))
        colour = colours.sequential(level / _LEVELS)
        axes.add_patch(PathPatch(path, facecolor="none", edgecolor=colour, linewidth=thick, capstyle="butt"))
