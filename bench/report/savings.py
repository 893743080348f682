"""What each approximation saves and what it keeps, a line each: 5.0× time, 3.1× memory, 0.96."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench import stats, wording
from bench.cells import Cell
from bench.report import front, markdown, sections
from bench.stats import Estimate

_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Saving:
    """``time`` over the fastest exact one, ``memory`` over the leanest; who is cheaper in both and no further away."""

    cell: Cell
    time: Estimate
    memory: float | None
    beaten_by: Cell | None


def savings(cells: Sequence[Cell]) -> list[Saving]:
    """Of one workload where most approximations were timed: first what nothing beats, then by time.

    Empty where no exact one is beside them.
    """
    told = front.told_at_most_lengths(cells)
    exact = [cell for cell in told if cell.contender.exact]
    if not exact:
        return []
    fastest = min(exact, key=_seconds)
    leanest = min((cell.peak_bytes for cell in exact if cell.peak_bytes), default=None)
    rivals = [cell for cell in told if not cell.contender.is_floor]
    found = [
        Saving(
            cell,
            stats.ratio(fastest.samples, cell.samples),
            leanest / cell.peak_bytes if leanest and cell.peak_bytes else None,
            min((other for other in rivals if _beats(other, cell)), key=_seconds, default=None),
        )
        for cell in told
        if not cell.contender.exact
    ]
    return sorted(found, key=lambda one: (one.cell.contender.is_floor, one.beaten_by is not None, -one.time.value))


def _seconds(cell: Cell) -> float:
    assert cell.seconds is not None  # noqa: S101  # only timed cells are told
    return cell.seconds.value


def _beats(one: Cell, other: Cell) -> bool:
    """Cheaper in one of time and memory and in neither dearer, and no further from exact attention (to a hundredth)."""
    if one is other or _error(one) > 1.01 * _error(other):
        return False
    costs = [(_seconds(one), _seconds(other))]
    if one.peak_bytes and other.peak_bytes:
        costs.append((one.peak_bytes, other.peak_bytes))
    return all(ours <= theirs for ours, theirs in costs) and any(ours < theirs for ours, theirs in costs)


def _error(cell: Cell) -> float:
    return 0.0 if cell.contender.exact else cell.relative_error or 0.0


def table(found: Sequence[Saving], fractions: Mapping[Cell, float]) -> str:
    """A line an approximation. ``fractions``: see :mod:`bench.report.ceiling`."""
    placed = any(one.cell in fractions for one in found)
    header = ["saves", "time", "memory", "keeps", "error", *(["of the way"] if placed else []), "beaten by"]
    rows = [
        [
            sections.name(one.cell.contender),
            wording.times(one.time),
            _NOTHING if one.memory is None else wording.factor(one.memory),
            kept(one.cell.cosine),
            _NOTHING if one.cell.relative_error is None else wording.error(one.cell.relative_error),
            *([share(fractions.get(one.cell))] if placed else []),
            "" if one.beaten_by is None else markdown.code(one.beaten_by.contender.label),
        ]
        for one in found
    ]
    return markdown.table(header, rows)


def kept(cosine: float | None) -> str:
    """A cosine, where there is one."""
    return _NOTHING if cosine is None else wording.cosine(cosine)


def share(fraction: float | None) -> str:
    """A fraction between floor and ceiling; empty where there is none."""
    return "" if fraction is None else f"{fraction:.2f}"


def title(found: Sequence[Saving]) -> str:
    """What the table is of."""
    cell = found[0].cell
    return f"What each approximation saves and keeps: {cell.mask}, {cell.mode}, N = {wording.length(cell.length)}"


NOTE = (
    "*Saves*: how many times less than the fastest and the leanest exact attention at that length; *keeps* is the "
    "cosine of the output with that of exact attention, *error* is relative. *Beaten by* something that is dearer in "
    "neither time nor memory, cheaper in one, and no further from exact attention."
)
