"""The tables of a report as Markdown, each from the cells that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from bench import wording
from bench.cells import Cell, Contender
from bench.report import markdown, tables
from bench.report.answer import Answer, Pick
from bench.report.gaps import STATUSES, Gap
from bench.stats import Estimate, Growth

_MOST_LENGTHS = 6  # columns of a table
_MOST_RIVALS = 2
_NOTHING = "–"

Written = Callable[[Cell], str | None]


def by_length(heading: str, cells: Iterable[Cell], written: Written) -> str:
    """Contenders down, lengths across, in tables of at most six lengths; nothing at all where nothing is written.

    A cell without a figure shows its status. A contender without any figure is left out.
    """
    rows: dict[Contender, dict[int, str]] = {}
    known = set()
    for cell in cells:
        text = written(cell)
        rows.setdefault(cell.contender, {})[cell.length] = _missing(cell) if text is None else text
        if text is not None:
            known.add(cell.contender)
    rows = {contender: row for contender, row in rows.items() if contender in known}
    lengths = sorted({length for row in rows.values() for length in row})
    parts = [
        markdown.table(
            [heading, *map(wording.length, part)],
            [[name(contender), *(row.get(length, _NOTHING) for length in part)] for contender, row in rows.items()],
        )
        for part in _parts(lengths)
    ]
    return "\n\n".join(parts)


def _missing(cell: Cell) -> str:
    return _NOTHING if cell.status == "measured" else cell.status.replace("_", " ")


def _parts(lengths: Sequence[int]) -> list[Sequence[int]]:
    """Parts of at most six lengths, about equally long."""
    if not lengths:
        return []
    count = -(-len(lengths) // _MOST_LENGTHS)
    size = -(-len(lengths) // count)
    return [lengths[start : start + size] for start in range(0, len(lengths), size)]


def name(contender: Contender) -> str:
    """The label, with a sign for approximate ones."""
    code = markdown.code(contender.label)
    if contender.exact:
        return code
    return f"≈ {code} (floor)" if contender.is_floor else f"≈ {code}"


# --- the answer -----------------------------------------------------------------------------------------------


def answers(answered: Mapping[tuple[str, str], Sequence[Answer]]) -> str:
    """Workloads down, one row for exact and one for approximate, lengths across."""
    lengths = sorted({answer.length for found in answered.values() for answer in found})
    parts = []
    for part in _parts(lengths):
        rows = []
        for (mask, mode), found in answered.items():
            at = {answer.length: answer for answer in found}
            exact = [_exact(at.get(length)) for length in part]
            approximate = [_approximate(at.get(length)) for length in part]
            rows.append([f"**{markdown.text(mask)}, {mode}**", "exact", *exact])
            rows.append(["", "approximate", *approximate])
        parts.append(markdown.table(["workload", "fastest", *map(wording.length, part)], rows, left=2))
    return "\n\n".join(parts)


def _exact(answer: Answer | None) -> str:
    return _NOTHING if answer is None or answer.exact is None else "<br>".join(_picked(answer.exact))


def _approximate(answer: Answer | None) -> str:
    if answer is None or answer.approximate is None:
        return _NOTHING
    lines = _picked(answer.approximate)
    if not answer.approximation_pays:
        lines.append("*not faster than exact*")
    error = answer.approximate.cell.relative_error
    if error is None:
        lines.append("fidelity not measured")
    else:
        floor = "" if answer.floor is None else f" (floor {wording.error(answer.floor)})"
        lines.append(f"error {wording.error(error)}{floor}")
    return "<br>".join(lines)


def _picked(pick: Pick) -> list[str]:
    lines = [markdown.code(pick.cell.contender.label), wording.time(pick.seconds)]
    if pick.cell.peak_bytes is not None:
        lines.append(f"{wording.mebibytes(pick.cell.peak_bytes)} MiB")
    if pick.rivals:
        lines.append(f"within noise of {rivals(pick)}")
    return lines


def rivals(pick: Pick) -> str:
    """The first two that cannot be told from the pick, and how many more there are."""
    names = [markdown.code(cell.contender.label) for cell in pick.rivals[:_MOST_RIVALS]]
    more = len(pick.rivals) - len(names)
    return f"{', '.join(names)} and {more} more" if more else wording.listed(names)


# --- the figures of one workload ------------------------------------------------------------------------------


def times(cells: Sequence[Cell], found: Iterable[Answer]) -> str:
    """Median times with intervals; the fastest of its kind and what cannot be told from it in bold."""
    best = {
        cell
        for answer in found
        for pick in (answer.exact, answer.approximate)
        if pick
        for cell in (pick.cell, *pick.rivals)
    }

    def written(cell: Cell) -> str | None:
        if cell.seconds is None:
            return None
        text = wording.time(cell.seconds)
        return f"**{text}**" if cell in best else text

    return by_length("median time", cells, written)


def speedups(cells: Sequence[Cell], found: Mapping[Cell, Estimate], over: str | None) -> str:
    """How many times faster than the baseline."""
    others = [cell for cell in cells if cell.contender.label != over]
    return by_length("speed-up", others, lambda cell: wording.times(found[cell]) if cell in found else None)


def memory(cells: Sequence[Cell]) -> str:
    """Peak memory in MiB, and what of it is kept for the backward where there is one."""
    splits = any(cell.figures["saved_bytes"] is not None for cell in cells)

    def written(cell: Cell) -> str | None:
        if cell.peak_bytes is None:
            return None
        saved = cell.figures["saved_bytes"]
        return wording.mebibytes(cell.peak_bytes) + (f" ({wording.mebibytes(saved)})" if saved is not None else "")

    return by_length("peak (saved) MiB" if splits else "peak MiB", cells, written)


def own_errors(cells: Sequence[Cell]) -> str:
    """Each against its own formula in float64, with what rounding explains; gradients below."""

    def written(cell: Cell) -> str | None:
        output = _held(cell.figures["own_error"], cell.figures["tolerance"])
        gradient = _held(cell.figures["gradient_error"], cell.figures["gradient_tolerance"])
        lines = [output, gradient and f"∇ {gradient}"]
        return "<br>".join(line for line in lines if line) or None

    return by_length("error of tolerance", cells, written)


def _held(error: float | None, tolerance: float | None) -> str:
    if error is None:
        return ""
    return wording.error(error) + ("" if tolerance is None else f" of {wording.error(tolerance)}")


def fidelities(cells: Iterable[Cell], fractions: Mapping[Cell, float] | None = None) -> str:
    """Approximate ones against exact attention: relative error of the output, and cosine.

    ``fractions``: how far each is from floor to ceiling, where that is known.
    """
    known = fractions or {}

    def written(cell: Cell) -> str | None:
        if cell.relative_error is None:
            return None
        cosine = "" if cell.cosine is None else f", cos {wording.cosine(cell.cosine)}"
        way = f", {known[cell]:.2f}" if cell in known else ""
        return wording.error(cell.relative_error) + cosine + way

    heading = "relative error, cosine" + (", of the way" if known else "")
    return by_length(heading, [cell for cell in cells if not cell.contender.exact], written)


def setups(cells: Sequence[Cell]) -> str:
    """What happens once: building, compiling, the first call."""

    def written(cell: Cell) -> str | None:
        seconds = cell.figures["setup_seconds"]
        if seconds is None:
            return None
        compiling = cell.figures["compile_seconds"]
        return wording.duration(seconds) + (f" ({wording.duration(compiling)})" if compiling else "")

    return by_length("set-up (compiling)", cells, written)


def other_clocks(cells: Sequence[Cell]) -> str:
    """On CUDA: with the cache as the call before left it, and replayed from a graph."""

    def written(cell: Cell) -> str | None:
        warm = cell.figures["seconds_warm"]
        graph = cell.figures["seconds_graph"]
        told = [f"{wording.duration(seconds)}{kind}" for seconds, kind in ((warm, ""), (graph, " graph")) if seconds]
        return "<br>".join(told) or None

    return by_length("warm cache, graph", cells, written)


def rates(cells: Sequence[Cell]) -> str:
    """Share of what the machine was seen to attain at this arithmetic intensity."""

    def written(cell: Cell) -> str | None:
        share = cell.figures["roofline_fraction"]
        return None if share is None else wording.percent(share)

    return by_length("share of the roofline", cells, written)


def growth(grown: Iterable[tables.Scaling]) -> str:
    """Fitted exponents beside the claimed ones."""
    rows = [
        [
            name(scaling.contender),
            *_exponents(scaling.time, scaling.contender.time_exponent),
            *_exponents(scaling.memory, scaling.contender.memory_exponent),
        ]
        for scaling in grown
    ]
    header = ["exponent of N", "time", "last step", "claimed", "", "memory", "last step", "claimed", ""]
    return markdown.table(header, rows)


def _exponents(fitted: Growth | None, claimed: float | None) -> list[str]:
    claim = _NOTHING if claimed is None else f"{claimed:g}"
    if fitted is None:
        return [_NOTHING, _NOTHING, claim, ""]
    return [
        wording.exponent(fitted.exponent),
        f"{fitted.at_the_end:.2f}",
        claim,
        tables.verdict(fitted, claimed),
    ]


# --- who and what is missing ------------------------------------------------------------------------------------------


def contenders(found: Iterable[Contender]) -> str:
    """What each variant is, with which parameters, from which paper."""
    rows = [
        [
            name(contender),
            contender.family.replace("_", " "),
            markdown.text(contender.summary),
            "" if contender.parameters == "{}" else markdown.code(contender.parameters),
            markdown.text(contender.paper or ""),
        ]
        for contender in sorted(found, key=lambda contender: (contender.order, contender.parameters))
    ]
    return markdown.table(["variant", "family", "what it is", "parameters", "paper"], rows, left=5)


def notes(found: Iterable[tuple[str, int, int]]) -> str:
    """What the measuring noted."""
    return "\n".join(f"- {markdown.text(note)}{_alike(ways)} ({count}×)" for note, count, ways in found)


def _alike(ways: int) -> str:
    return f" (and {ways - 1} more that differ in numbers)" if ways > 1 else ""


def gaps(found: Iterable[Gap]) -> str:
    """Status, reason, who, and in which cells."""
    rows = [
        [
            STATUSES[gap.status],
            _reason(gap),
            ", ".join(markdown.code(contender.label) for contender in gap.contenders),
            _where(gap),
        ]
        for gap in found
    ]
    return markdown.table(["what", "why", "variants", "cells"], rows, left=4)


def _reason(gap: Gap) -> str:
    stage = f"{gap.stage}: " if gap.stage else ""
    some = gap.in_some_processes
    partly = f" ({some} of them measured in other processes)" if some else ""
    return f"{stage}{markdown.text(gap.reason)}{_alike(gap.alike)}{partly}"


def _where(gap: Gap) -> str:
    masks = ", ".join(markdown.text(mask) for mask in dict.fromkeys(cell.mask for cell in gap.cells))
    modes = ", ".join(dict.fromkeys(cell.mode for cell in gap.cells))
    lengths = wording.lengths(cell.length for cell in gap.cells)
    return f"{len(gap.cells)}: {masks}; {modes}; {lengths}"
