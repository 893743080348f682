"""Who attends to whom in a real sentence, exactly and by each approximation: a layer's weights, and the rollout.

The rollout says how much of each token reaches each through all layers, half of every layer being its residual (Abnar
and Zuidema 2020, arXiv 2005.00928). Weights may be negative, as a Nyström method's are: blue above zero, orange and
dotted below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from bench.report import colours
from bench.report.canvas import TITLE_INCHES, Picture
from bench.report.labels import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Weights = Sequence[Sequence[float]]

_SIDE, _GAP, _NAME, _TOKENS, _BELOW, _FOOT = 1.85, 0.2, 0.26, 0.72, 0.6, 0.5
_COLUMNS, MOST = 4, 12
_LEAST_WIDTH = 7.2  # what the key takes
_LONGEST_TOKEN, _LONGEST_NAME = 9, 26
_TOKEN_POINTS = 6.0
_LEVELS = 12
_DEEPEST = 6  # percent of the weights that have the deepest colour
_KEY_LEVELS = (1, 3, 6, 9, 12)


@dataclass(frozen=True, slots=True)
class Panel:
    """Weights ``(tokens, tokens)``: what each query, down, gives to each key, across."""

    name: str
    weights: Weights


def draw(panels: Sequence[Panel], tokens: Sequence[str], title: str) -> Picture | None:
    """The first panel is the exact one, by which the colours of all go; at most twelve."""
    panels = panels[:MOST]
    if not panels or not tokens:
        return None
    return Picture(partial(_figure, panels, [_short(token, _LONGEST_TOKEN) for token in tokens]), title)


def deepest(weights: Weights) -> float:
    """The weight from which on all have the deepest colour: the sixth largest of a hundred.

    A sentence's first token takes so much that by the largest of all nothing else would be seen.
    """
    ordered = sorted((abs(weight) for row in weights for weight in row), reverse=True)
    return next((weight for weight in (ordered[len(ordered) * _DEEPEST // 100], ordered[0]) if weight > 0), 1.0)


def level(weight: float, most: float) -> int:
    """How deep, from −12 to 12: the square root, so that small weights are seen beside large ones."""
    depth = round(math.sqrt(min(abs(weight) / most, 1.0)) * _LEVELS)
    return int(math.copysign(depth, weight))


def _short(name: str, longest: int) -> str:
    plain = shown(name)
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


def _figure(panels: Sequence[Panel], tokens: Sequence[str]) -> Figure:
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    most = deepest(panels[0].weights)
    width = max(_TOKENS + columns * (_SIDE + _GAP), _LEAST_WIDTH)
    row_height = _NAME + _SIDE
    total = TITLE_INCHES + rows * row_height + _BELOW + _FOOT
    figure = Figure(figsize=(width, total))
    for number, panel in enumerate(panels):
        down, across = divmod(number, columns)
        left, top = _TOKENS + across * (_SIDE + _GAP), total - TITLE_INCHES - down * row_height - _NAME
        axes = figure.add_axes((left / width, (top - _SIDE) / total, _SIDE / width, _SIDE / total))
        axes.set_title(_short(panel.name, _LONGEST_NAME), fontsize=8, pad=3, loc="left")
        _panel(axes, panel.weights, most)
        is_lowest = number + columns >= len(panels)
        _label(axes, tokens, at_left=across == 0, below=is_lowest)
    negative = any(weight < 0 for panel in panels for row in panel.weights for weight in row)
    _key(figure, most, has_negative=negative)
    return figure


def _panel(axes: Axes, weights: Weights, most: float) -> None:
    """Runs of one depth are one box, and boxes of one depth one path: a picture stays small."""
    axes.set_xlim(0, len(weights[0]))
    axes.set_ylim(len(weights), 0)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(colours.SHADE)
    boxes: dict[int, list[tuple[float, float]]] = {}
    below: list[tuple[int, int]] = []
    for row, values in enumerate(weights):
        levels = [level(weight, most) for weight in values]
        below += [(column, row) for column, one in enumerate(levels) if one < 0]
        start = 0
        for depth, run in groupby(levels):
            end = start + len(list(run))
            if depth:
                box = [(start, row), (end, row), (end, row + 1), (start, row + 1), (start, row)]
                boxes.setdefault(depth, []).extend((float(x), float(y)) for x, y in box)
            start = end
    for depth, points in sorted(boxes.items()):
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * (len(points) // 5)
        colour = colours.diverging(depth / _LEVELS)[0]
        # an edge of the same colour, so that no hairlines are left between boxes
        axes.add_patch(PathPatch(Path(points, codes), facecolor=colour, edgecolor=colour, linewidth=0.3))
    if below:
        x, y = zip(*((column + 0.5, row + 0.5) for column, row in below), strict=True)
        axes.plot(x, y, linestyle="none", marker=".", markersize=2.4, markeredgewidth=0, color=colours.INK)


def _label(axes: Axes, tokens: Sequence[str], *, at_left: bool, below: bool) -> None:
    axes.tick_params(length=0, pad=2, labelsize=_TOKEN_POINTS, labelcolor=colours.INK)
    places = [number + 0.5 for number in range(len(tokens))]
    axes.set_yticks(places if at_left else [], list(tokens) if at_left else [])
    axes.set_xticks(places if below else [], list(tokens) if below else [], rotation=90)


def _key(figure: Figure, most: float, *, has_negative: bool) -> None:
    """Depths with the weights that they stand for, and how to read the panels."""
    width, total = figure.get_size_inches()
    key = figure.add_axes((0, 0, 1, 1), zorder=-1)
    key.set_xlim(0, width)
    key.set_ylim(0, total)
    key.axis("off")
    x, y = _TOKENS, 0.36
    for depth in [*(-level for level in reversed(_KEY_LEVELS[:3])), *_KEY_LEVELS] if has_negative else _KEY_LEVELS:
        colour = colours.diverging(depth / _LEVELS)[0]
        key.add_patch(Rectangle((x, y - 0.06), 0.16, 0.12, facecolor=colour, edgecolor=colour, linewidth=0.3))
        if depth < 0:
            key.plot([x + 0.08], [y], marker=".", markersize=2.8, markeredgewidth=0, color=colours.INK)
        weight = math.copysign((depth / _LEVELS) ** 2 * most, depth)
        more = " or more" if depth == _LEVELS else ""
        key.text(x + 0.2, y, f"{weight:.2g}{more}", fontsize=7, va="center")
        x += 0.74
    words = "queries from above, keys from the left; of the first tokens of a document, each of which sees all of it"
    key.text(_TOKENS, 0.14, words, fontsize=7, color=colours.FAINT, va="center")
