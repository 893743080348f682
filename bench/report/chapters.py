"""What a page says of one ground and of each workload on it, ready for the template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from bench.cells import Cell, Contender, Ground
from bench.record import Host
from bench.report import (
    ceiling,
    claims,
    crossovers,
    gallery,
    gaps,
    headlines,
    markdown,
    repeat,
    savings,
    sections,
    tables,
    trust,
)
from bench.report.answer import Answer, answers
from bench.report.gallery import PictureFile
from bench.stats import Estimate

Drawn = Literal["all", "overview", "nothing"]

MOST_WORKLOADS = 12  # with pictures and tables of their own


@dataclass(frozen=True, slots=True)
class WorkloadPage:
    """One mask and mode. Everything but the title may be empty."""

    title: str
    headline: str
    pictures: Sequence[PictureFile]
    times: str
    absent: str
    folded: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class GroundPage:
    """All that stands on one ground."""

    number: int
    title: str
    answers: str
    overview: Sequence[PictureFile]
    savings: Sequence[tuple[str, str]]
    machine: Sequence[PictureFile]
    workloads: Sequence[WorkloadPage]
    further: int
    claims: str
    claims_summary: str
    cells: int
    missing: int
    gaps: str
    unspoken: int
    warnings: Sequence[str]
    environment: str
    notes: str
    dispatched: str

    @property
    def pictures(self) -> list[PictureFile]:
        own = [picture for workload in self.workloads for picture in workload.pictures]
        return [*self.overview, *self.machine, *own]


def page(
    ground: Ground,
    cells: Sequence[Cell],
    host: Host,
    *,
    over: str | None,
    speedups: Mapping[Cell, Estimate],
    number: int,
    title: str,
    prefix: str,
    drawn: Drawn = "all",
    has_fronts: bool = True,
) -> GroundPage:
    """Of the ``cells`` of one ground, in order; names of pictures begin with ``prefix``.

    ``drawn`` says which of its pictures there are: drawing takes most of the time of a report on many grounds.
    ``has_fronts``: whether its fronts are among them, and not beside those of other grounds.
    """
    groups = {workload: list(group) for workload, group in groupby(cells, key=lambda cell: (cell.mask, cell.mode))}
    known = {workload: members for workload, members in groups.items() if any(map(_has_something, members))}
    found = {workload: answers(members) for workload, members in known.items()}
    answered = {
        workload: told for workload, told in found.items() if any(answer.exact or answer.approximate for answer in told)
    }
    shown = list(known)[:MOST_WORKLOADS]
    names = gallery.slugs(shown)
    grown = {workload: tables.scalings(members) for workload, members in known.items()}
    judged = claims.judged([cell for members in known.values() for cell in members], grown)
    missing = gaps.gaps(cells)
    saved = [one for members in known.values() for one in [savings.savings(members)] if one]
    fractions = ceiling.fractions(cells)
    told = trust.circumstances(cells)
    return GroundPage(
        number=number,
        title=title,
        answers=sections.answers(answered) if answered else "",
        overview=[
            *(gallery.overview(cells, speedups, over, prefix) if drawn != "nothing" else []),
            *(gallery.fronts(cells, prefix) if drawn == "all" and has_fronts else []),
        ],
        savings=[(savings.title(found), savings.table(found, fractions)) for found in saved[:MOST_WORKLOADS]],
        machine=gallery.machine(cells, host, prefix) if drawn == "all" else [],
        workloads=[
            _workload(
                ground,
                known[workload],
                found[workload],
                host,
                over=over,
                speedups=speedups,
                grown=grown[workload],
                fractions=fractions,
                names=(prefix, names[workload]),
                is_drawn=drawn == "all",
            )
            for workload in shown
        ],
        further=len(known) - len(shown),
        claims=claims.table(judged),
        claims_summary=claims.summary(judged),
        cells=len(cells),
        missing=sum(cell.status != "measured" for cell in cells),
        gaps=sections.gaps(missing),
        unspoken=gaps.unspoken(cells),
        warnings=[markdown.text(warning) for warning in trust.warnings(ground, cells, host, told)],
        environment=markdown.table(
            ["property", "value"],
            [[fact, markdown.text(value)] for fact, value in trust.environment(ground, cells, host, told)],
            left=2,
        ),
        notes=sections.notes(trust.notes(cells)),
        dispatched="\n".join(
            f"- {markdown.code(label)}: {', '.join(map(markdown.code, names))}"
            for label, names in trust.dispatched(cells)
            if names
        ),
    )


def _has_something(cell: Cell) -> bool:
    return bool(cell.samples or cell.peak_bytes or cell.status == "measured")


def _workload(
    ground: Ground,
    cells: Sequence[Cell],
    found: Sequence[Answer],
    host: Host,
    *,
    over: str | None,
    speedups: Mapping[Cell, Estimate],
    grown: Sequence[tables.Scaling],
    fractions: Mapping[Cell, float],
    names: tuple[str, str],
    is_drawn: bool,
) -> WorkloadPage:
    title = f"{cells[0].mask}, {cells[0].mode}"
    timed = any(answer.exact or answer.approximate for answer in found)
    folded = [
        (f"Speed-up over {over}", sections.speedups(cells, speedups, over)),
        ("Crossovers: from which length on a variant is faster", crossovers.table(cells, over)),
        ("Growth with the length: fitted and claimed exponents", sections.growth(grown)),
        ("Median time with a warm cache, and replayed from a CUDA graph", sections.other_clocks(cells)),
        ("Peak memory", sections.memory(cells)),
        ("Fidelity to exact attention", _fidelities(cells, fractions)),
        ("Error against its own formula in float64, and what rounding explains", sections.own_errors(cells)),
        ("Set-up, done once: building, compiling, first call", sections.setups(cells)),
        ("Share of the roofline", sections.rates(cells)),
        ("The commands that repeat one row, and all of them", _commands(ground, cells)),
    ]
    absent = _absent(cells)
    return WorkloadPage(
        title=markdown.text(title),
        headline=headlines.headline(found, speedups, over) if timed else "",
        pictures=list(gallery.curves(ground, cells, host, title, names)) if is_drawn else [],
        times=sections.times(cells, found),
        absent=", ".join(sections.name(contender) for contender in absent),
        folded=[(summary, table) for summary, table in folded if table],
    )


def _fidelities(cells: Sequence[Cell], fractions: Mapping[Cell, float]) -> str:
    """The note is of the longest length that has a fraction."""
    here = {cell: fractions[cell] for cell in cells if cell in fractions}
    length = max((cell.length for cell in here), default=0)
    note = ceiling.note([cell for cell in cells if cell.length == length], here)
    table = sections.fidelities(cells, here)
    return f"{table}\n\n{note}" if note else table


def _commands(ground: Ground, cells: Sequence[Cell]) -> str:
    """Of the first row that has a figure; another row has another name there. Then of the whole."""
    first = next((cell.contender for cell in cells if cell.status == "measured"), cells[0].contender)
    row = repeat.command(ground, [cell for cell in cells if cell.contender == first])
    every = repeat.command(ground, cells)
    return markdown.console([row] if row == every else [row, every])


def _absent(cells: Iterable[Cell]) -> list[Contender]:
    """Contenders without a time at any length."""
    timed = {cell.contender: False for cell in cells}
    for cell in cells:
        timed[cell.contender] |= cell.seconds is not None
    return [contender for contender, has in timed.items() if not has]
