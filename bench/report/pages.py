"""A run as a folder that people can read: README.md with the answer first, pictures, and everything as CSV.

Everything comes from the records alone; the same records give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import jinja2

from bench import wording
from bench.cells import Cell, Contender, Ground, gather, hosts
from bench.errors import NotComparableError, WrongUsageError
from bench.record import Host, Record
from bench.report import gaps, headlines, markdown, plots, repeat, sections, tables, titles, trust
from bench.report.answer import Answer, answers
from bench.report.panels import Curve
from bench.stats import Estimate
from bench.store import Reading

MARKER = "<!-- attention-bench report -->"
README = "README.md"

_OURS = re.compile(r"(?:\d+-)?(?:time|memory)-[a-z0-9-]+\.(?:svg|png)|cells\.csv|measurements\.csv")
_MIB_PER_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A picture as the page refers to it: ``name`` lacks its ending."""

    name: str
    alt: str
    picture: plots.Picture


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
    workloads: Sequence[WorkloadPage]
    cells: int
    missing: int
    gaps: str
    unspoken: int
    warnings: Sequence[str]
    environment: str
    notes: str
    dispatched: str


def write(reading: Reading, out: Path, *, baseline: str | None = None) -> Path:
    """Write the report of what was read into the folder ``out``, over an earlier report if it holds one.

    ``baseline`` is the label of the variant that speed-ups are over; without one, ``naive_sdpa`` if it is there.
    Returns the path of its README.md.

    Raises:
        NotComparableError: there are no records.
        WrongUsageError: no such baseline, or the folder cannot be written or holds a README.md of another kind.

    """
    if not reading.records:
        raise NotComparableError("expected records to report, got none: measure with 'run' first")
    gathered = gather(reading.records)
    contenders = {cell.contender for cells in gathered.values() for cell in cells}
    over = tables.baseline(contenders, baseline)
    pages = _pages(gathered, reading.records, over)
    files = {
        README: _readme(pages, reading, gathered).encode(),
        "cells.csv": tables.as_csv(tables.cells_frame(gathered, over)),
        "measurements.csv": tables.as_csv(tables.records_frame(reading.records)),
    }
    for page in pages:
        for workload in page.workloads:
            for file in workload.pictures:
                files[f"{file.name}.svg"] = file.picture.svg
                files[f"{file.name}.png"] = file.picture.png
    _put(out, files)
    return out / README


def _put(out: Path, files: Mapping[str, bytes]) -> None:
    """All files, and nothing left of an earlier report; the README.md last, since it marks a folder as a report."""
    readme = out / README
    try:
        if readme.exists() and MARKER.encode() not in readme.read_bytes():
            raise WrongUsageError(f"expected a folder for a report, {readme} is something else: give another --out")
        out.mkdir(parents=True, exist_ok=True)
        for old in sorted(out.iterdir()) if readme.exists() else []:
            if old.name not in files and _OURS.fullmatch(old.name):
                old.unlink()
        for name, content in sorted(files.items(), key=lambda item: (item[0] == README, item[0])):
            (out / name).write_bytes(content)
    except OSError as error:
        raise WrongUsageError(
            f"expected a folder that can be written, cannot write to {out}: {error.strerror}; give another --out"
        ) from error


# --- pages ----------------------------------------------------------------------------------------------------


def _pages(gathered: Mapping[Ground, Sequence[Cell]], records: Iterable[Record], over: str | None) -> list[GroundPage]:
    machines = {(host.fingerprint, host.device_name): host for host in hosts(records)}
    names = [markdown.text(title) for title in titles.titles(list(gathered))]
    return [
        _page(
            ground,
            cells,
            machines[ground.fingerprint, ground.device_name],
            over,
            number=number,
            title=names[number - 1],
            prefix=f"{number}-" if len(gathered) > 1 else "",
        )
        for number, (ground, cells) in enumerate(gathered.items(), start=1)
    ]


def _page(
    ground: Ground, cells: Sequence[Cell], host: Host, over: str | None, *, number: int, title: str, prefix: str
) -> GroundPage:
    answered: dict[tuple[str, str], list[Answer]] = {}
    workloads = []
    slugs: set[str] = set()
    for (mask, mode), group in groupby(cells, key=lambda cell: (cell.mask, cell.mode)):
        members = list(group)
        if not any(cell.samples or cell.peak_bytes or cell.status == "measured" for cell in members):
            continue
        found = answers(members)
        if any(answer.exact or answer.approximate for answer in found):
            answered[mask, mode] = found
        slug = _unused(f"{wording.slug(mask)}-{wording.slug(mode)}", slugs)
        workloads.append(_workload(ground, members, found, host, over, names=(prefix, slug)))
    missing = gaps.gaps(cells)
    return GroundPage(
        number=number,
        title=title,
        answers=sections.answers(answered) if answered else "",
        workloads=workloads,
        cells=len(cells),
        missing=sum(cell.status != "measured" for cell in cells),
        gaps=sections.gaps(missing),
        unspoken=gaps.unspoken(cells),
        warnings=[markdown.text(warning) for warning in trust.warnings(ground, cells, host)],
        environment=markdown.table(
            ["property", "value"],
            [[fact, markdown.text(value)] for fact, value in trust.environment(ground, cells, host)],
            left=2,
        ),
        notes=sections.notes(trust.notes(cells)),
        dispatched="\n".join(
            f"- {markdown.code(label)}: {', '.join(map(markdown.code, names))}"
            for label, names in trust.dispatched(cells)
            if names
        ),
    )


def _unused(slug: str, used: set[str]) -> str:
    """The slug, with a number if another mask has the same."""
    candidate, number = slug, 1
    while candidate in used:
        number += 1
        candidate = f"{slug}-{number}"
    used.add(candidate)
    return candidate


def _workload(
    ground: Ground,
    cells: Sequence[Cell],
    found: Sequence[Answer],
    host: Host,
    over: str | None,
    *,
    names: tuple[str, str],
) -> WorkloadPage:
    title = f"{cells[0].mask}, {cells[0].mode}"
    timed = any(answer.exact or answer.approximate for answer in found)
    folded = [
        (f"Speed-up over {over}", sections.speedups(cells, over)),
        ("Median time with a warm cache, and replayed from a CUDA graph", sections.other_clocks(cells)),
        ("Peak memory", sections.memory(cells)),
        ("Fidelity to exact attention", sections.fidelities(cells)),
        ("Error against its own formula in float64, and what rounding explains", sections.own_errors(cells)),
        ("Growth with the length: fitted and claimed exponents", sections.growth(cells)),
        ("Set-up, done once: building, compiling, first call", sections.setups(cells)),
        ("Share of the roofline", sections.rates(cells)),
        ("The command that repeats this", markdown.console([repeat.command(ground, cells)])),
    ]
    absent = _absent(cells)
    return WorkloadPage(
        title=markdown.text(title),
        headline=headlines.headline(found, tables.speedups(cells, over), over) if timed else "",
        pictures=list(_pictures(ground, cells, host, title, names)),
        times=sections.times(cells, found),
        absent=", ".join(sections.name(contender) for contender in absent),
        folded=[(summary, table) for summary, table in folded if table],
    )


def _absent(cells: Iterable[Cell]) -> list[Contender]:
    """Contenders without a time at any length."""
    timed = {cell.contender: False for cell in cells}
    for cell in cells:
        timed[cell.contender] |= cell.seconds is not None
    return [contender for contender, has in timed.items() if not has]


def _pictures(
    ground: Ground, cells: Sequence[Cell], host: Host, title: str, names: tuple[str, str]
) -> Iterator[PictureFile]:
    prefix, slug = names
    axis = titles.axis(ground)
    limit = host.gpu_memory_bytes if ground.device == "cuda" else (host.memory_gib or 0) * _MIB_PER_GIB or None
    drawn = {
        "time": (plots.TIME, {cell: cell.seconds for cell in cells if cell.seconds is not None}),
        "memory": (
            plots.memory(limit, "memory of the device" if ground.device == "cuda" else "memory of the machine"),
            {cell: Estimate(cell.peak_bytes) for cell in cells if cell.peak_bytes},
        ),
    }
    for name, (quantity, values) in drawn.items():
        picture = plots.draw(_curves(values), quantity, f"{name.capitalize()} · {title}", axis)
        if picture is not None:
            alt = f"{name.capitalize()} of a call against the {axis}, {markdown.text(title)}"
            yield PictureFile(f"{prefix}{name}-{slug}", alt, picture)


def _curves(values: Mapping[Cell, Estimate]) -> list[Curve]:
    points: dict[Contender, dict[int, Estimate]] = {}
    for cell, estimate in values.items():
        points.setdefault(cell.contender, {})[cell.length] = estimate
    return [Curve(contender, found) for contender, found in points.items()]


# --- the page -------------------------------------------------------------------------------------------------


def _readme(pages: Sequence[GroundPage], reading: Reading, gathered: Mapping[Ground, Sequence[Cell]]) -> str:
    loader = jinja2.PackageLoader("bench", "templates")
    templates = jinja2.Environment(  # noqa: S701  # Markdown; words are escaped where they enter
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = templates.get_template("readme.md.jinja").render(
        marker=MARKER,
        title=_headline_title(gathered),
        summary=_summary(gathered, reading.records),
        problems=[*map(markdown.text, map(_without_folder, reading.problems)), *_skipped(reading.skipped)],
        apart=_apart(pages),
        timed=any(page.answers for page in pages),
        checked=any(page.missing < page.cells for page in pages),
        contenders=sections.contenders({cell.contender for cells in gathered.values() for cell in cells}),
        warnings=any(page.warnings for page in pages),
        grounds=pages,
        details=markdown.details,
        commands=_commands(reading.records),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def _headline_title(gathered: Mapping[Ground, Sequence[Cell]]) -> str:
    devices = list(dict.fromkeys(ground.device_name for ground in gathered))
    return f"Attention on {wording.listed([markdown.text(device) for device in devices])}"


def _summary(gathered: Mapping[Ground, Sequence[Cell]], records: Sequence[Record]) -> str:
    cells = [cell for found in gathered.values() for cell in found]
    variants = {cell.contender.label for cell in cells}
    masks = ", ".join(markdown.text(mask) for mask in dict.fromkeys(cell.mask for cell in cells))
    modes = ", ".join(dict.fromkeys(cell.mode for cell in cells))
    days = sorted({record.at[:10] for record in records if record.at})
    measured = sum(cell.status == "measured" for cell in cells)
    when = f" · {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    lengths = wording.lengths(cell.length for cell in cells)
    counted = f"{measured} of {wording.counted(len(cells), 'cell')} measured"
    return f"{wording.counted(len(variants), 'variant')} · {masks} · {modes} · lengths {lengths} · {counted}{when}"


def _apart(pages: Sequence[GroundPage]) -> str:
    if len(pages) == 1:
        return ""
    titles = "; ".join(f"{page.number}. {page.title}" for page in pages)
    return f"Figures of these {len(pages)} parts cannot be compared with each other: {titles}."


def _without_folder(problem: str) -> str:
    """The folder in which somebody's file lies is nobody else's business."""
    return re.sub(r"^.*[/\\](?=[^/\\]* line \d+: )", "", problem)


def _skipped(skipped: Mapping[str, int]) -> list[str]:
    return [
        f"{wording.counted(count, 'line')} of the kind {markdown.code(kind)}, which this version does not know"
        for kind, count in sorted(skipped.items())
    ]


def _commands(records: Iterable[Record]) -> str:
    """The commands of the runs, each once."""
    commands: dict[str, list[str]] = {}
    for record in records:
        runs = commands.setdefault(record.command or "", [])
        if record.run_id not in runs:
            runs.append(record.run_id)
    parts = []
    for command, runs in commands.items():
        names = wording.listed([markdown.code(run) for run in runs])
        parts.append(
            f"Run {names}:\n\n{markdown.console([command])}" if command else f"Of run {names} no command was recorded."
        )
    return "\n\n".join(parts)
