"""What a contender attains of the machine's ceilings, against how much it computes for each byte that must move."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from bench import wording
from bench.report import colours
from bench.report.breakdowns import busiest
from bench.report.canvas import TITLE_INCHES, Picture, picture
from bench.report.labels import CHARACTER_INCHES, LINE_INCHES, shown
from bench.report.panels import MARGIN_INCHES, End, look_of, name_beside, plain, within
from bench.report.styles import style
from bench.traffic import least_traffic_bytes

if TYPE_CHECKING:
    from bench.cells import Cell
    from bench.record import Host

_LEFT, _AXES, _BOTTOM, _LEAST_HEIGHT = 1.1, 4.4, 0.55, 2.9
_BELOW_RIDGE, _ABOVE_RIDGE = 16.0, 8.0

Point = tuple["Cell", float, float]  # issued FLOPs a byte, and a second


def draw(cells: Sequence[Cell], host: Host) -> Picture | None:
    """At the mask, mode and length with the most; None without the machine's ceilings or FLOPs."""
    compute = host.ceilings.get(f"matmul_flops_per_second:{cells[0].ground.dtype}")
    bandwidth = host.ceilings.get("copy_bytes_per_second")
    mode = "fwd" if any(cell.mode == "fwd" and cell.seconds for cell in cells) else cells[0].mode
    place = busiest(cells, (mode,))
    if not compute or not bandwidth or place is None:
        return None
    points: list[Point] = []
    for cell in cells:
        issued = cell.worst(attrgetter("issued_flops"))
        if (cell.mask, cell.length, cell.mode) == (*place, mode) and cell.seconds and issued:
            points.append((cell, issued / least_traffic_bytes(cell.workload), issued / cell.seconds.value))
    if not points:
        return None
    title = f"Roofline · {shown(place[0])}, {mode}, N = {wording.length(place[1])}"
    return picture(partial(_figure, points, compute, bandwidth), title)


def _figure(points: Sequence[Point], compute: float, bandwidth: float) -> Figure:
    names = max(len(shown(cell.contender.label)) for cell, _, _ in points) * CHARACTER_INCHES + 0.25
    height = max(_LEAST_HEIGHT, (len(points) + 1) * LINE_INCHES)
    width, total = _LEFT + _AXES + MARGIN_INCHES + names, TITLE_INCHES + height + _BOTTOM
    figure = Figure(figsize=(width, total))
    axes = figure.add_axes((_LEFT / width, _BOTTOM / total, _AXES / width, height / total))
    ridge = compute / bandwidth
    across = [intensity for _, intensity, _ in points]
    low, high = min(*across, ridge / _BELOW_RIDGE) / 1.3, max(*across, ridge * _ABOVE_RIDGE) * 1.3
    rates = [rate for *_, rate in points]
    limits = min(*rates, compute / 30) / 1.4, compute * 2.0
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    axes.set_ylim(*limits)
    plain(axes.yaxis, 10, limits, _rate, most=9)
    plain(axes.xaxis, 2, (low, high), lambda value: f"{value:.3g}", most=9)
    axes.set_xlabel("issued FLOPs for each byte that must move")
    axes.set_ylabel("issued FLOP/s")
    axes.plot([low, ridge, high], [low * bandwidth, compute, compute], color=colours.INK, linewidth=1.4, zorder=2)
    axes.text(high / 1.05, compute * 1.06, f"matrix product {_rate(compute)}", fontsize=7.5, ha="right", va="bottom")
    axes.text(ridge / 1.15, compute * 1.06, f"copy {bandwidth / 1e9:.3g} GB/s", fontsize=7.5, ha="right", va="bottom")
    ends = []
    for cell, intensity, rate in points:
        look = style(cell.contender)
        axes.plot([intensity], [rate], **look_of(look), zorder=3)
        x, y = within(axes, intensity, rate)
        ends.append(End(x, y, y, shown(cell.contender.label), look))
    name_beside(axes, ends, _AXES, height)
    return figure


def _rate(value: float) -> str:
    for scale, unit in ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")):
        if value >= 0.999 * scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} FLOP/s"
