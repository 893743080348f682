"""Fidelity by input source: the same attentions on real activations, on numbers like them, and on N(0, 1)."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from bench import wording
from bench.cells import Cell, Contender, Ground
from bench.fidelity.sources import REAL, kind_of
from bench.record import Fidelity
from bench.report import ceiling, front, markdown, savings, sections
from bench.report.gallery import PictureFile, named

NORMAL = "normal"
_MOST_SOURCES = 6  # beside each other
_NOTHING = "–"


class Place(NamedTuple):
    """Where fidelities stand beside each other."""

    mask: str
    mode: str
    length: int

    def __str__(self) -> str:
        return f"{self.mask}, {self.mode}, N = {wording.length(self.length)}"


@dataclass(frozen=True)
class Family:
    """Grounds that differ in nothing but the source of their inputs and the seed: by source, the cells of each seed."""

    sources: Mapping[str, Mapping[int, Sequence[Cell]]]
    grounds: Sequence[Ground]

    def at(self, source: str, place: Place) -> dict[Contender, list[Cell]]:
        """The approximations that have a fidelity there, a cell a seed."""
        found: dict[Contender, list[Cell]] = {}
        for cells in self.sources[source].values():
            for cell in cells:
                if place_of(cell) == place and not cell.contender.exact and cell.relative_error is not None:
                    found.setdefault(cell.contender, []).append(cell)
        return found

    @cached_property
    def fractions(self) -> dict[Cell, float]:
        """Of every cell that has one, how far it is from floor to ceiling."""
        every = [cells for by_seed in self.sources.values() for cells in by_seed.values()]
        return {cell: share for cells in every for cell, share in ceiling.fractions(cells).items()}

    @cached_property
    def places(self) -> list[Place]:
        """Where anything has a fidelity; first where most has, and then the longest."""
        counts = Counter(
            place_of(cell)
            for by_seed in self.sources.values()
            for cells in by_seed.values()
            for cell in cells
            if not cell.contender.exact and cell.relative_error is not None
        )
        return sorted(counts, key=lambda place: (-counts[place], -place.length))


def place_of(cell: Cell) -> Place:
    """Its workload."""
    return Place(cell.mask, cell.mode, cell.length)


def families(gathered: Mapping[Ground, Sequence[Cell]]) -> list[Family]:
    """Those in which an approximation was measured on anything but normal numbers."""
    found: dict[Ground, dict[Ground, Sequence[Cell]]] = {}
    for ground, cells in gathered.items():
        found.setdefault(replace(ground, inputs="", seed=0), {})[ground] = cells
    return [
        family
        for members in found.values()
        if any(ground.inputs != NORMAL for ground in members)
        for family in [_family(members)]
        if family.places
    ]


def _family(members: Mapping[Ground, Sequence[Cell]]) -> Family:
    """Real sources first."""
    sources: dict[str, dict[int, Sequence[Cell]]] = {}
    for ground, cells in members.items():
        sources.setdefault(ground.inputs, {})[ground.seed] = cells
    return Family(sources, list(members))


def is_real(source: str) -> bool:
    """Whether a model made these tensors."""
    return kind_of(source) in REAL


# --- fronts -------------------------------------------------------------------------------------------------------


def has_all_fronts(family: Family) -> bool:
    """Whether the picture of all sources says what pictures of each would say."""
    workloads = {
        (cell.mask, cell.mode) for by_seed in family.sources.values() for cells in by_seed.values() for cell in cells
    }
    return 1 < len(family.sources) <= _MOST_SOURCES and len(workloads) == 1


def fronts(family: Family, prefix: str) -> list[PictureFile]:
    """A row a source, of the first seed: speed, and memory beside it where that was measured."""
    first = family.places[0]
    rows = []
    for source, by_seed in list(family.sources.items())[:_MOST_SOURCES]:
        cells = [cell for cell in next(iter(by_seed.values())) if (cell.mask, cell.mode) == first[:2]]
        rows.append([front.front(cells, cost, source=source) for cost in (front.SPEED, front.MEMORY)])
    whole = all(memory is not None for speed, memory in rows if speed is not None)
    panels = [panel for row in rows for panel in (row if whole else row[:1]) if panel is not None]
    drawn = front.draw(panels, "Speed and memory" if whole else "Speed", most=2 * _MOST_SOURCES)
    alt = "Speed and memory against relative error of each approximation, a row for each source of inputs"
    return list(named(f"{prefix}sources", alt, drawn))


# --- tables -------------------------------------------------------------------------------------------------------


def errors(family: Family, place: Place) -> str:
    """Approximations down, sources across: the error, and how far from floor to ceiling; the least error first."""
    by_source = {source: found for source in family.sources if (found := family.at(source, place))}
    fractions = family.fractions
    shown = list(by_source)[:_MOST_SOURCES]
    first = by_source[shown[0]]
    order = sorted(
        dict.fromkeys(contender for source in shown for contender in by_source[source]),
        key=lambda one: _mean(cell.relative_error for cell in first[one]) if one in first else float("inf"),
    )
    rows = [
        [
            sections.name(contender),
            *(_error(by_source[source].get(contender, ()), fractions) for source in shown),
        ]
        for contender in order
    ]
    heading = "error" + (", of the way" if fractions else "")
    text = markdown.table([heading, *map(markdown.code, shown)], rows)
    told = [text, _agreement({source: by_source[source] for source in shown})]
    if len(by_source) > len(shown):
        told.append(f"{len(by_source) - len(shown)} more sources have rows in cells.csv alone.")
    return "\n\n".join(part for part in told if part)


def _error(cells: Sequence[Cell], fractions: Mapping[Cell, float]) -> str:
    if not cells:
        return _NOTHING
    return spread([cell.relative_error for cell in cells]) + _way(cells, fractions, before=", ")


def spread(values: Iterable[float | None]) -> str:
    """Of an error on some seeds: the mean, and the least and the most."""
    known = [value for value in values if value is not None]
    if not known:
        return _NOTHING
    mean = wording.error(statistics.mean(known))
    return mean if len(known) == 1 else f"{mean} [{wording.error(min(known))}, {wording.error(max(known))}]"


def _way(cells: Sequence[Cell], fractions: Mapping[Cell, float], *, before: str = "") -> str:
    """The mean over seeds, where every seed has one."""
    known = [fractions[cell] for cell in cells if cell in fractions]
    return f"{before}{savings.share(statistics.mean(known))}" if len(known) == len(cells) else ""


def _agreement(by_source: Mapping[str, Mapping[Contender, Sequence[Cell]]]) -> str:
    """Spearman's, of the errors on each source with those on the first."""
    from scipy.stats import spearmanr  # takes half a second, and only such runs need it

    reference, *others = by_source
    told = []
    for source in others:
        shared = [one for one in by_source[reference] if one in by_source[source] and not one.is_floor]
        ranks = [
            [_mean(cell.relative_error for cell in by_source[of][one]) for one in shared] for of in (reference, source)
        ]
        if len(shared) > 2 and all(len(set(values)) > 1 for values in ranks):  # noqa: PLR2004  # two are always in order
            told.append(
                f"{markdown.code(source)} {float(spearmanr(*ranks).statistic):.2f} ({len(shared)} approximations)"
            )
    if not told:
        return ""
    return f"Rank correlation (Spearman) of the errors with those on {markdown.code(reference)}: {'; '.join(told)}."


METRICS: Mapping[str, Callable[[Fidelity], float | None]] = {
    "cosine": lambda fidelity: fidelity.cosine,
    "overlap": lambda fidelity: fidelity.overlap,
    "top-8 recall": lambda fidelity: fidelity.top8_recall,
    "spectral error": lambda fidelity: fidelity.spectral_error,
    "density": lambda fidelity: fidelity.density,
}


def metrics(family: Family, source: str, place: Place) -> str:
    """Everything that is known of each approximation on one source, means over seeds; the least error first."""
    found = family.at(source, place)
    fractions = family.fractions
    rows = [
        [
            sections.name(contender),
            spread([cell.relative_error for cell in cells]),
            _way(cells, fractions),
            _number(ceiling.budget(cells[0]), "{:.0f}"),
            *(_number(metric(cells, of), "{:.2f}") for of in METRICS.values()),
        ]
        for contender, cells in sorted(found.items(), key=lambda item: _mean(cell.relative_error for cell in item[1]))
    ]
    table = markdown.table([markdown.code(source), "error", "of the way", "budget", *METRICS], rows)
    some = next(iter(found.values()))[0]
    note = ceiling.note([cell for cell in _beside(family, some) if place_of(cell) == place], fractions)
    return f"{table}\n\n{note}" if note else table


def _beside(family: Family, cell: Cell) -> Sequence[Cell]:
    return family.sources[cell.ground.inputs][cell.ground.seed]


def metric(cells: Iterable[Cell], of: Callable[[Fidelity], float | None]) -> float | None:
    """The mean over seeds of a figure, each the median over processes; None where no seed has one."""
    known = [
        value
        for cell in cells
        for value in [cell.middle(lambda outcome: of(outcome.fidelity) if outcome.fidelity else None)]
        if value is not None
    ]
    return statistics.mean(known) if known else None


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _mean(values: Iterable[float | None]) -> float:
    return statistics.mean(value for value in values if value is not None)
