"""A run as a folder that people can read: README.md with the answer first, pictures, and everything as CSV.

Everything comes from the records alone; the same records give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jinja2

from bench import wording
from bench.cells import Cell, Ground, gather, hosts
from bench.errors import NotComparableError, WrongUsageError
from bench.record import Record
from bench.report import chapters, index, markdown, sections, sidebyside, tables, titles
from bench.report.chapters import GroundPage
from bench.stats import Estimate
from bench.store import Reading

MARKER = "<!-- attention-bench report -->"
README = "README.md"

MOST_GROUNDS = 12  # with pages of their own
MOST_ALL_DRAWN, MOST_OVERVIEWS = 4, 4  # all with all pictures; of more, the first alone, and overviews of the next
_MOST_HEADLINES = 4  # of a report in the index
MOST_ROWS = 20_000  # of measurements.csv; of more, the run files are the better copy

_OURS = re.compile(
    r"(?:\d+-)?(?:(?:time|memory)-[a-z0-9-]+|(?:speedup|front|phases|passes|holds|roofline|maps)(?:-\d+)?(?:-dark)?)"
    r"\.(?:svg|png)|cells\.csv|measurements\.csv|report\.json"
)


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
    faster = {ground: tables.speedups(cells, over) for ground, cells in gathered.items()}
    pages = _pages(gathered, reading.records, over, faster)
    files = {
        README: _readme(pages, reading, gathered).encode(),
        "cells.csv": tables.as_csv(tables.cells_frame(gathered, over, faster)),
    }
    if len(reading.records) <= MOST_ROWS:
        files["measurements.csv"] = tables.as_csv(tables.records_frame(reading.records))
    for page in pages:
        for file in page.pictures:
            files |= file.files
    files[index.CARD] = index.encode(_card(pages, reading, gathered))
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


def _pages(
    gathered: Mapping[Ground, Sequence[Cell]],
    records: Iterable[Record],
    over: str | None,
    faster: Mapping[Ground, Mapping[Cell, Estimate]],
) -> list[GroundPage]:
    machines = {(host.fingerprint, host.device_name): host for host in hosts(records)}
    names = [markdown.text(title) for title in titles.titles(list(gathered))]
    return [
        chapters.page(
            ground,
            cells,
            machines[ground.fingerprint, ground.device_name],
            over=over,
            speedups=faster[ground],
            number=number,
            title=names[number - 1],
            prefix=f"{number}-" if len(gathered) > 1 else "",
            drawn=_drawn(number, len(gathered)),
        )
        for number, (ground, cells) in enumerate(gathered.items(), start=1)
        if number <= MOST_GROUNDS
    ]


def _drawn(number: int, count: int) -> chapters.Drawn:
    if number == 1 or count <= MOST_ALL_DRAWN:
        return "all"
    return "overview" if number <= MOST_OVERVIEWS else "nothing"


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
        apart=_apart(pages, len(gathered) - len(pages)),
        beside=sidebyside.section(gathered),
        timed=any(page.answers for page in pages),
        checked=any(page.missing < page.cells for page in pages),
        contenders=sections.contenders({cell.contender for cells in gathered.values() for cell in cells}),
        warnings=any(page.warnings for page in pages),
        grounds=pages,
        details=markdown.details,
        commands=_commands(reading.records),
        rows=len(reading.records),
        most_rows=MOST_ROWS,
        further=len(gathered) - len(pages),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def _card(pages: Sequence[GroundPage], reading: Reading, gathered: Mapping[Ground, Sequence[Cell]]) -> index.Card:
    headlines = [
        f"{'' if len(pages) == 1 else f'{page.title}: '}**{workload.title}**: {workload.headline}"
        for page in pages
        for workload in page.workloads
        if workload.headline
    ]
    return index.Card(
        title=_headline_title(gathered),
        summary=_summary(gathered, reading.records),
        headlines=headlines[:_MOST_HEADLINES],
        thumbnail=next((file.name for page in pages for file in page.pictures), None),
    )


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


def _apart(pages: Sequence[GroundPage], further: int) -> str:
    if len(pages) == 1 and not further:
        return ""
    titles = "; ".join(f"{page.number}. {page.title}" for page in pages)
    more = f"; and {further} more, which have rows in cells.csv alone" if further else ""
    return (
        f"What stands in these {len(pages) + further} parts was not measured alike, and [differs in more than the "
        f"variant](#side-by-side): {titles}{more}."
    )


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
