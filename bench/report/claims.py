"""What publications say of a variant, beside what was measured here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from bench import stats, wording
from bench.cells import Cell, Contender
from bench.report import markdown, tables
from variants._contract import Claim

Verdict = Literal["holds", "does not hold here", "open", "not measurable here"]

_MARGIN = 0.1  # of an exponent
_FEWEST = 3
_MOST_TOLD = 2

Judgement = tuple[str, Verdict]  # what was measured, and what that means


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim about a contender, with what was found of it in each workload, and why there is nothing where so."""

    contender: Contender
    statement: str
    source: str
    found: Sequence[Judgement]
    why_not: str = ""

    @property
    def verdict(self) -> Verdict:
        """It holds where it does in every workload, and does not where it does not in any."""
        verdicts = {verdict for _, verdict in self.found}
        if "does not hold here" in verdicts:
            return "does not hold here"
        if "open" in verdicts:
            return "open"
        return "holds" if verdicts else "not measurable here"


def judged(cells: Sequence[Cell], grown: Mapping[tuple[str, str], Sequence[tables.Scaling]]) -> list[Judged]:
    """Every claim about the contenders of one ground: the exponents that they name, then those of their papers.

    ``grown``: the scalings of each mask and mode.
    """
    groups = {workload: list(group) for workload, group in groupby(cells, key=lambda cell: (cell.mask, cell.mode))}
    scalings = [{scaling.contender: scaling for scaling in grown[workload]} for workload in groups]
    workloads = list(groups.values())
    found = []
    for contender in dict.fromkeys(cell.contender for cell in cells if cell.samples or cell.peak_bytes):
        if contender.is_floor:
            continue
        found += list(_exponents(contender, workloads, scalings))
        found += [_paper(contender, claim, workloads) for claim in contender.claims]
    return found


def _exponents(
    contender: Contender,
    workloads: Sequence[Sequence[Cell]],
    scalings: Sequence[Mapping[Contender, tables.Scaling]],
) -> Iterator[Judged]:
    of: dict[str, tuple[float | None, Callable[[tables.Scaling], stats.Growth | None]]] = {
        "time": (contender.time_exponent, lambda scaling: scaling.time),
        "memory": (contender.memory_exponent, lambda scaling: scaling.memory),
    }
    for what, (claimed, growth) in of.items():
        if claimed is None:
            continue
        told: list[Judgement] = []
        for members, known in zip(workloads, scalings, strict=True):
            fitted = growth(known[contender]) if contender in known else None
            verdict = tables.verdict(fitted, claimed)
            if fitted is not None and verdict in ("holds", "does not hold here", "open"):
                exponent = fitted.exponent.value
                told.append((f"N^{exponent:.2f} ({_where(members)})", verdict))  # type: ignore[arg-type]  # by the line above
        statement = f"{what} grows as {_power(claimed)}"
        yield Judged(contender, statement, contender.paper or "its own statement", told, "too few lengths")


def _power(exponent: float) -> str:
    return "N" if exponent == 1 else f"N^{exponent:g}"


def _where(members: Sequence[Cell]) -> str:
    return f"{members[0].mask}, {members[0].mode}"


def _paper(contender: Contender, claim: Claim, workloads: Sequence[Sequence[Cell]]) -> Judged:
    wanted = [members for members in workloads if claim.mode in (None, members[0].mode)]
    find = {"speedup": _speedup, "memory_saving": _saving, "error_exponent": _convergence}.get(claim.metric)
    told = [one for members in wanted if find for one in [find(contender, claim, members)] if one is not None]
    return Judged(contender, claim.statement, claim.source, told, _lacking(claim))


def _lacking(claim: Claim) -> str:
    if claim.over is not None:
        where = f" from {wording.length(claim.min_length)} on" if claim.min_length > 1 else ""
        mode = f" in {claim.mode}" if claim.mode else ""
        return f"not measured beside {claim.over}{mode}{where}"
    return f"fewer than three values of {claim.parameter} were measured"


def _pairs(contender: Contender, claim: Claim, members: Iterable[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Cells of the contender and of what it is held against, the longest first."""
    at = {(cell.contender.variant, cell.length): cell for cell in members if cell.contender.variant == claim.over}
    ours = [cell for cell in members if cell.contender == contender and cell.length >= claim.min_length]
    for cell in sorted(ours, key=lambda cell: -cell.length):
        other = at.get((claim.over or "", cell.length))
        if other is not None:
            yield cell, other


def _speedup(contender: Contender, claim: Claim, members: Sequence[Cell]) -> Judgement | None:
    for cell, other in _pairs(contender, claim, members):
        if cell.samples and other.samples:
            faster = stats.ratio(other.samples, cell.samples)
            low, high = faster.low or faster.value, faster.high or faster.value
            told = f"{wording.times(faster)} ({_where(members)}, {wording.length(cell.length)})"
            return told, "holds" if low >= claim.value else "does not hold here" if high < claim.value else "open"
    return None


def _saving(contender: Contender, claim: Claim, members: Sequence[Cell]) -> Judgement | None:
    for cell, other in _pairs(contender, claim, members):
        if cell.peak_bytes and other.peak_bytes:
            saving = other.peak_bytes / cell.peak_bytes
            told = f"{wording.factor(saving)} ({_where(members)}, {wording.length(cell.length)})"
            return told, "holds" if saving >= claim.value else "does not hold here"
    return None


def _convergence(contender: Contender, claim: Claim, members: Sequence[Cell]) -> Judgement | None:
    """Over all sets of parameters of the variant that differ in this one alone; told once, at the first of them."""
    name, errors = claim.parameter or "", dict[int, dict[float, float]]()
    rest = _without(contender, name)
    for cell in members:
        if cell.contender.variant != contender.variant or _without(cell.contender, name) != rest:
            continue
        value = json.loads(cell.contender.parameters).get(name)
        if isinstance(value, (int, float)) and value > 0 and cell.relative_error:
            errors.setdefault(cell.length, {})[float(value)] = cell.relative_error
    lengths = [length for length, found in errors.items() if len(found) >= _FEWEST]
    if not lengths:
        return None
    found = errors[max(lengths)]
    x, y = np.log(sorted(found)), np.log([found[value] for value in sorted(found)])
    slope = float(np.polyfit(x, y, 1)[0])
    spread = ", ".join(f"{value:g}" for value in sorted(found))
    told = f"{name}^{slope:.2f} over {spread} ({_where(members)}, {wording.length(max(lengths))})"
    return told, "holds" if slope <= claim.value + _MARGIN else "does not hold here"


def _without(contender: Contender, name: str) -> dict[str, object]:
    return {key: value for key, value in json.loads(contender.parameters).items() if key != name}


# --- told ---------------------------------------------------------------------------------------------------


def table(found: Sequence[Judged]) -> str:
    """What does not hold first; of the workloads the worst first."""
    order: list[Verdict] = ["does not hold here", "open", "holds", "not measurable here"]
    rows = [
        [
            markdown.code(one.contender.label),
            f"{markdown.text(one.statement)}<br>*{markdown.text(one.source)}*",
            _measured(one),
            f"**{one.verdict}**" if one.verdict == "does not hold here" else one.verdict,
        ]
        for one in sorted(found, key=lambda one: order.index(one.verdict))
    ]
    return markdown.table(["variant", "claim", "measured", "verdict"], rows, left=4)


def _measured(one: Judged) -> str:
    if not one.found:
        return markdown.text(one.why_not)
    order = ["does not hold here", "open", "holds"]
    told = [words for words, _ in sorted(one.found, key=lambda found: order.index(found[1]))]
    more = [f"{len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD + 1 else []
    shown = told[:_MOST_TOLD] if more else told
    return "<br>".join([*map(markdown.text, shown), *more])


def summary(found: Sequence[Judged]) -> str:
    """How many of each."""
    counts = Counter(one.verdict for one in found)
    told = [
        (counts["holds"], "holds", "hold"),
        (counts["does not hold here"], "does not hold here", "do not hold here"),
        (counts["open"], "is open", "are open"),
        (counts["not measurable here"], "cannot be measured here", "cannot be measured here"),
    ]
    parts = [f"{count} {one if count == 1 else several}" for count, one, several in told if count]
    return f"Of {wording.counted(len(found), 'claim')} {wording.listed(parts)}." if parts else ""
