"""Where the time of a contender goes, how its backward stands to its forward, and what its memory holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bench import wording
from bench.cells import Cell, Contender
from bench.report import colours, strips
from bench.report.canvas import Picture
from bench.report.labels import shown
from bench.report.plots import SIZES, TIMES, tick_of
from bench.report.strips import Kind, Strips

_BUILDING = Kind("building", colours.FAINT, "o")
_COMPILING = Kind("compiling", colours.PURPLE, "s")
_FIRST = Kind("first call", colours.ORANGE, "D")
_FORWARD = Kind("forward", colours.BLUE, ">")
_BACKWARD = Kind("backward", colours.VERMILION, "<")
_BOTH = Kind("forward and backward", colours.BLACK, "X")

_OUTPUT = Kind("output", colours.FAINT, "o")
_SAVED = Kind("saved for backward", colours.VERMILION, "s")
_WORKSPACE = Kind("workspace", colours.BLUE, "^")
_PEAK = Kind("peak", colours.BLACK, "|")

_RATIO = Kind("backward over forward", colours.VERMILION, "o")
_CONVENTION = 2.5
_SHORTEST = 1e-7  # seconds; less is not told apart from nothing


def busiest(cells: Sequence[Cell], modes: Sequence[str]) -> tuple[str, int] | None:
    """The mask and length at which the most contenders were timed in any of the modes; the longest of them."""
    counts = Counter((cell.mask, cell.length) for cell in cells if cell.seconds and cell.mode in modes)
    if not counts:
        return None
    order = list(dict.fromkeys(cell.mask for cell in cells))
    return max(counts, key=lambda place: (counts[place], place[1], -order.index(place[0])))


def phases(cells: Sequence[Cell]) -> Picture | None:
    """Set-up beside a call, at one mask and length."""
    place = busiest(cells, ("fwd", "bwd", "fwd_bwd"))
    if place is None:
        return None
    rows = []
    for contender, modes in _by_contender(cells, place).items():
        told: dict[str, float] = {}
        for mode, kind in (("fwd", _FORWARD), ("bwd", _BACKWARD), ("fwd_bwd", _BOTH)):
            if mode in modes and (seconds := modes[mode].seconds):
                told[kind.name] = seconds.value
        told |= _setup(modes)
        rows.append((contender, told))
    rows.sort(key=lambda row: -max(row[1].values(), default=0.0))
    kinds = [_BUILDING, _COMPILING, _FIRST, _FORWARD, _BACKWARD, _BOTH]
    return strips.draw(
        Strips(rows, kinds, "seconds, once or a call", tick_of(TIMES), 10), f"Where the time goes · {_where(place)}"
    )


def _setup(modes: Mapping[str, Cell]) -> dict[str, float]:
    """Of the first mode that has it: what happens once."""
    for cell in modes.values():
        setup = cell.figures["setup_seconds"]
        first = cell.figures["first_call_seconds"]
        compiling = cell.figures["compile_seconds"]
        if setup is None:
            continue
        calling = first or 0.0
        building = setup - calling
        if compiling and compiling <= calling:
            calling -= compiling
        elif compiling:
            building -= compiling
        parts = {_BUILDING.name: building, _COMPILING.name: compiling or 0.0, _FIRST.name: calling}
        return {name: seconds for name, seconds in parts.items() if seconds > _SHORTEST}
    return {}


def passes(cells: Sequence[Cell]) -> Picture | None:
    """The backward as a multiple of the forward; where it was not timed alone, what both take less the forward."""
    place = busiest(cells, ("bwd", "fwd_bwd"))
    if place is None:
        return None
    rows = []
    for contender, modes in _by_contender(cells, place).items():
        forward = modes["fwd"].seconds if "fwd" in modes else None
        alone = modes["bwd"].seconds if "bwd" in modes else None
        both = modes["fwd_bwd"].seconds if "fwd_bwd" in modes else None
        if forward is None:
            continue
        backward = alone.value if alone else both.value - forward.value if both else 0.0
        if backward > 0:
            rows.append((contender, {_RATIO.name: backward / forward.value}))
    rows.sort(key=lambda row: -row[1][_RATIO.name])
    told = Strips(
        rows,
        [_RATIO],
        "times the forward",
        lambda value: f"{value:.3g}×",
        2,
        (_CONVENTION, "2.5×, as FLOPs are counted"),
    )
    return strips.draw(told, f"Forward against backward · {_where(place)}")


def memory(cells: Sequence[Cell]) -> Picture | None:
    """What the peak of a call that trains consists of, or of a forward where none was measured."""
    modes = [mode for mode in ("fwd_bwd", "bwd", "fwd") if any(cell.mode == mode and cell.peak_bytes for cell in cells)]
    place = busiest(cells, modes[:1])
    if place is None:
        return None
    rows = []
    for contender, found in _by_contender(cells, place).items():
        cell = found.get(modes[0])
        if cell is None or not cell.peak_bytes:
            continue
        parts = {
            _OUTPUT.name: cell.figures["output_bytes"],
            _SAVED.name: cell.figures["saved_bytes"],
            _WORKSPACE.name: cell.figures["workspace_bytes"],
            _PEAK.name: cell.peak_bytes,
        }
        rows.append((contender, {name: float(size) for name, size in parts.items() if size}))
    rows.sort(key=lambda row: -row[1][_PEAK.name])
    told = Strips(rows, [_OUTPUT, _SAVED, _WORKSPACE, _PEAK], "bytes a call adds", tick_of(SIZES), 2)
    return strips.draw(told, f"What memory holds · {_where(place)}, {modes[0]}")


def _by_contender(cells: Sequence[Cell], place: tuple[str, int]) -> dict[Contender, dict[str, Cell]]:
    found: dict[Contender, dict[str, Cell]] = {}
    for cell in cells:
        if (cell.mask, cell.length) == place and cell.status == "measured":
            found.setdefault(cell.contender, {})[cell.mode] = cell
    return found


def _where(place: tuple[str, int]) -> str:
    return f"{shown(place[0])}, N = {wording.length(place[1])}"
