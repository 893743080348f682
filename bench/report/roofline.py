"""What a contender attains of the machine's ceilings, against how much it computes for each byte that must move.

A problem that stays in a cache may be quicker than main memory: beside that roof stands the one of the fastest cache.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from bench import wording
from bench.report import colours
from bench.report.breakdowns import busiest
from bench.report.canvas import TITLE_INCHES, Picture
from bench.report.labels import CHARACTER_INCHES, LINE_INCHES, shown
from bench.report.panels import MARGIN_INCHES, End, look_of, name_beside, plain, within
from bench.report.styles import style
from bench.traffic import COPY, copy_bandwidth, copy_bandwidths, least_traffic_bytes

if TYPE_CHECKING:
    from bench.cells import Cell
    from bench.record import Host
    from variants._contract import Use

_LEFT, _AXES, _BOTTOM, _LEAST_HEIGHT = 1.1, 4.4, 0.55, 2.9
_WORDS = 0.13  # inches that a line of words is high
_BELOW_RIDGE, _ABOVE_RIDGE = 16.0, 8.0
_FASTER = 1.1  # a cache that is no faster than main memory needs no roof of its own
_INPUTS: tuple[Use, ...] = ("query", "key", "value")

Point = tuple["Cell", float, float]  # issued FLOPs a byte, and a second


def draw(cells: Sequence[Cell], host: Host) -> Picture | None:
    """At the mask, mode and length with the most; None without the machine's ceilings or FLOPs."""
    compute = host.ceilings.get(f"matmul_flops_per_second:{cells[0].ground.dtype}")
    bandwidth = host.ceilings.get(COPY)
    mode = "fwd" if any(cell.mode == "fwd" and cell.seconds for cell in cells) else cells[0].mode
    place = busiest(cells, (mode,))
    if not compute or not bandwidth or place is None:
        return None
    points: list[Point] = []
    for cell in cells:
        issued = cell.figures["issued_flops"]
        if (cell.mask, cell.length, cell.mode) == (*place, mode) and cell.seconds and issued:
            points.append((cell, issued / traffic_bytes(cell, host.ceilings), issued / cell.seconds.value))
    if not points:
        return None
    title = f"Roofline · {shown(place[0])}, {mode}, N = {wording.length(place[1])}"
    return Picture(partial(_figure, points, compute, bandwidth, _cache(host.ceilings)), title)


def _cache(ceilings: Mapping[str, float]) -> float | None:
    """The rate of the fastest copy that fits into a cache, where there is one that beats main memory."""
    fastest = max(copy_bandwidths(ceilings).values(), default=0.0)
    return fastest if fastest > _FASTER * ceilings[COPY] else None


def traffic_bytes(cell: Cell, ceilings: Mapping[str, float]) -> int:
    """The least that the contender must move, without the inputs that it makes no use of.

    No record says which those are, but its share of the roofline was taken from them: they are what gives that share.
    """
    every = least_traffic_bytes(cell.workload)
    for outcome in cell.measured:
        if outcome.bound != "memory" or not outcome.roofline_fraction or not outcome.seconds:
            continue
        attainable = outcome.issued_flops / statistics.median(outcome.seconds) / outcome.roofline_fraction
        for count in (3, 2, 1):
            for uses in combinations(_INPUTS, count):
                moved = least_traffic_bytes(cell.workload, uses)
                rate = copy_bandwidth(ceilings, moved) or math.nan
                if math.isclose(attainable, rate * outcome.issued_flops / moved, rel_tol=1e-6):
                    return moved
    return every


def _figure(points: Sequence[Point], compute: float, bandwidth: float, cache: float | None) -> Figure:
    names = max(len(shown(cell.contender.label)) for cell, _, _ in points) * CHARACTER_INCHES + 0.25
    height = max(_LEAST_HEIGHT, (len(points) + 1) * LINE_INCHES)
    width, total = _LEFT + _AXES + MARGIN_INCHES + names, TITLE_INCHES + height + _BOTTOM
    figure = Figure(figsize=(width, total))
    axes = figure.add_axes((_LEFT / width, _BOTTOM / total, _AXES / width, height / total))
    ridge = compute / bandwidth
    across = [intensity for _, intensity, _ in points]
    nearest = ridge if cache is None else compute / cache
    low, high = min(*across, nearest / _BELOW_RIDGE) / 1.3, max(*across, ridge * _ABOVE_RIDGE) * 1.3
    rates = [rate for *_, rate in points]
    limits = min(*rates, compute / 30) / 1.4, max(*rates, compute * 2.0 / 1.4) * 1.4  # above a roof, a point is seen
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    axes.set_ylim(*limits)
    plain(axes.yaxis, 10, limits, _rate, most=9)
    plain(axes.xaxis, 2, (low, high), _intensity, most=9)
    axes.set_xlabel("issued FLOPs for each byte that must move")
    axes.set_ylabel("issued FLOP/s")
    axes.plot([low, ridge, high], [low * bandwidth, compute, compute], color=colours.INK, linewidth=1.4, zorder=2)
    axes.text(high / 1.05, compute * 1.06, f"matrix product {_rate(compute)}", fontsize=7.5, ha="right", va="bottom")
    memory = "copy" if cache is None else "main memory"
    axes.text(ridge / 1.15, compute * 1.06, f"{memory} {_bytes(bandwidth)}", fontsize=7.5, ha="right", va="bottom")
    if cache is not None:
        roof = [low, nearest, ridge], [low * cache, compute, compute]
        axes.plot(*roof, color=colours.INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=2)
        # left of its roof where that is as low as the words, and no point can be
        line = (limits[1] / limits[0]) ** (_WORDS / height)
        under = nearest / (1.15 * line), compute / 1.12
        axes.text(*under, f"cache {_bytes(cache)}", fontsize=7.5, ha="right", va="top")
    ends = []
    for cell, intensity, rate in points:
        look = style(cell.contender)
        axes.plot([intensity], [rate], **look_of(look), zorder=3)
        x, y = within(axes, intensity, rate)
        ends.append(End(x, y, y, shown(cell.contender.label), look))
    name_beside(axes, ends, _AXES, height)
    return figure


def _intensity(value: float) -> str:
    """FLOPs a byte, a power of two: 0.25, 32, 4k."""
    return wording.length(round(value)) if value >= 1 else f"{value:.3g}"


def _bytes(rate: float) -> str:
    return f"{rate / 1e9:.3g} GB/s"


def _rate(value: float) -> str:
    for scale, unit in ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")):
        if value >= 0.999 * scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} FLOP/s"
