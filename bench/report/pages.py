"""A run as a folder that people can read: README.md with the answer first, pictures, and everything as CSV.

Everything comes from the records alone; the same records give the same bytes.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import jinja2

from bench import wording
from bench.cells import Cell, Contender, Ground, gather, hosts, repeats
from bench.errors import NotComparableError, WrongUsageError
from bench.fidelity import trial
from bench.fidelity.trial import TrialRecord
from bench.record import Record
from bench.report import (
    chapters,
    drawing,
    fidelity,
    index,
    inside,
    markdown,
    savings,
    sections,
    sidebyside,
    sources,
    tables,
    titles,
    trust,
)
from bench.report.chapters import GroundPage
from bench.report.gallery import PictureFile
from bench.stats import Estimate
from bench.store import Reading

MARKER = "<!-- attention-bench report -->"
README = "README.md"

MOST_GROUNDS = 12  # with pages of their own; what repeats one with another seed has none
MOST_ALL_DRAWN, MOST_OVERVIEWS = 4, 4  # all with all pictures; of more, the first alone, and overviews of the next
_MOST_HEADLINES = 4  # of a report in the index
MOST_ROWS = 20_000  # of measurements.csv; of more, the run files are the better copy

_OURS = re.compile(
    r"(?:\d+-)?(?:(?:time|memory)-[a-z0-9-]+|(?:speedup|front(?:-memory)?|phases|passes|holds|roofline|maps|sources|sentence|rollout)"
    r"(?:-\d+)?(?:-dark)?)\.(?:svg|png)|cells\.csv|measurements\.csv|trials\.csv|report\.json"
)


def write(
    reading: Reading,
    out: Path,
    *,
    baseline: str | None = None,
    tried: trial.Reading = trial.NOTHING,
) -> Path:
    """Write the report of what was read into the folder ``out``, over an earlier report if it holds one.

    ``baseline`` is the label of the variant that speed-ups are over; without one, ``naive_sdpa`` if it is there.
    ``tried``: trials of the same runs. Returns the path of its README.md.

    Raises:
        NotComparableError: there are neither records nor trials.
        WrongUsageError: no such baseline, or the folder cannot be written or holds a README.md of another kind.

    """
    trials = tried.records
    if not reading.records and not trials:
        raise NotComparableError("expected records to report, got none: measure with 'run' first")
    gathered = gather(reading.records)
    contenders = {cell.contender for cells in gathered.values() for cell in cells}
    over = tables.baseline(contenders, baseline) if gathered else None
    faster = {ground: tables.speedups(cells, over) for ground, cells in gathered.items()}
    families = sources.families(gathered)
    pages = _pages(gathered, reading.records, over, faster, families)
    parts = fidelity.parts(gathered, families, trials)
    summary = _summary(gathered, reading.records, trials)
    files = {README: _readme(pages, parts, reading, tried, gathered, summary=summary).encode()}
    if reading.records:
        files["cells.csv"] = tables.as_csv(tables.cells_frame(gathered, over, faster))
        if len(reading.records) <= MOST_ROWS:
            files["measurements.csv"] = tables.as_csv(tables.records_frame(reading.records))
    if trials:
        files["trials.csv"] = inside.as_csv(trials)
    files |= drawing.files(_pictures(pages, parts))
    files[index.CARD] = index.encode(_card(pages, parts, trials, gathered, summary=summary))
    _put(out, files)
    return out / README


def _pictures(pages: Iterable[GroundPage], parts: Iterable[fidelity.Part]) -> list[PictureFile]:
    own = [file for page in pages for file in page.pictures]
    return [*own, *(file for part in parts for file in part.pictures)]


def _put(out: Path, files: Mapping[str, bytes]) -> None:
    """All files, and nothing left of an earlier report; or, where they cannot be written, all as it was before.

    They are written into a folder within ``out``, so that moving them takes no room. The README.md comes last, since it
    marks a folder as a report.
    """
    readme = out / README
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        if readme.exists() and MARKER.encode() not in readme.read_bytes():
            raise WrongUsageError(f"expected a folder for a report, {readme} is something else: give another --out")
        olds = sorted(out.iterdir()) if readme.exists() else []
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=out) as beside:
            for name, content in files.items():
                (Path(beside) / name).write_bytes(content)
            for name in sorted(files, key=lambda name: (name == README, name)):
                (Path(beside) / name).replace(out / name)
        for old in olds:
            if old.name not in files and _OURS.fullmatch(old.name):
                old.unlink()
    except OSError as error:
        for folder in new:
            with contextlib.suppress(OSError):  # it is not there, or somebody else has put something there
                folder.rmdir()
        raise WrongUsageError(
            f"expected a folder that can be written, cannot write to {out}: {error.strerror}; give another --out"
        ) from error


# --- pages ----------------------------------------------------------------------------------------------------


def _pages(
    gathered: Mapping[Ground, Sequence[Cell]],
    records: Iterable[Record],
    over: str | None,
    faster: Mapping[Ground, Mapping[Cell, Estimate]],
    families: Iterable[sources.Family],
) -> list[GroundPage]:
    beside = {ground for family in families if sources.has_all_fronts(family) for ground in family.grounds}
    machines = {(host.fingerprint, host.device_name): host for host in hosts(records)}
    names = [markdown.text(title) for title in titles.titles(list(gathered))]
    shown = list(gathered)[: min(MOST_GROUNDS, len(gathered) - len(repeats(gathered)))]
    return [
        chapters.page(
            ground,
            gathered[ground],
            machines[ground.fingerprint, ground.device_name],
            over=over,
            speedups=faster[ground],
            number=number,
            title=names[number - 1],
            prefix=f"{number}-" if len(gathered) > 1 else "",
            drawn=_drawn(number, len(shown)),
            has_fronts=ground not in beside,
        )
        for number, ground in enumerate(shown, start=1)
    ]


def _drawn(number: int, count: int) -> chapters.Drawn:
    if number == 1 or count <= MOST_ALL_DRAWN:
        return "all"
    return "overview" if number <= MOST_OVERVIEWS else "nothing"


# --- the page -------------------------------------------------------------------------------------------------


def _readme(
    pages: Sequence[GroundPage],
    parts: Sequence[fidelity.Part],
    reading: Reading,
    tried: trial.Reading,
    gathered: Mapping[Ground, Sequence[Cell]],
    *,
    summary: str,
) -> str:
    trials = tried.records
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
        title=_headline_title(gathered, trials),
        summary=summary,
        problems=[
            *map(markdown.text, map(_without_folder, [*reading.problems, *tried.problems])),
            *_skipped(reading.skipped),
        ],
        apart=_apart(pages, len(gathered) - len(pages)),
        beside=sidebyside.section(gathered) if gathered else "",
        timed=any(page.answers for page in pages),
        checked=any(page.missing < page.cells for page in pages),
        contenders=sections.contenders(_contenders(gathered, trials)),
        warnings=any(page.warnings for page in pages),
        grounds=pages,
        fidelity=parts,
        trials=len(trials),
        trial_conditions=inside.conditions(trials),
        details=markdown.details,
        text=markdown.text,
        saves=savings.NOTE if any(page.savings for page in pages) else "",
        commands=_commands(chain(reading.records, trials)),
        rows=len(reading.records),
        most_rows=MOST_ROWS,
        further=len(gathered) - len(pages),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def _card(
    pages: Sequence[GroundPage],
    parts: Sequence[fidelity.Part],
    trials: Sequence[TrialRecord],
    gathered: Mapping[Ground, Sequence[Cell]],
    *,
    summary: str,
) -> index.Card:
    headlines = [
        f"{'' if len(pages) == 1 else f'{page.title}: '}**{workload.title}**: {workload.headline}"
        for page in pages
        for workload in page.workloads
        if workload.headline
    ]
    inner = inside.headline(trials)
    return index.Card(
        title=_headline_title(gathered, trials),
        summary=summary,
        headlines=[*headlines[: _MOST_HEADLINES - bool(inner)], *([inner] if inner else [])],
        thumbnail=_thumbnail(pages, parts),
    )


def _thumbnail(pages: Sequence[GroundPage], parts: Sequence[fidelity.Part]) -> str | None:
    """The first picture that shows all of a ground, or else all input sources, or else anything."""
    first = [file for page in pages for file in page.overview]
    return next((file.name for file in (*first, *_pictures([], parts), *_pictures(pages, []))), None)


def _contenders(gathered: Mapping[Ground, Sequence[Cell]], trials: Sequence[TrialRecord]) -> set[Contender]:
    """Of both; those of trials where the bare attentions have no such variant and parameters."""
    bare = {cell.contender for cells in gathered.values() for cell in cells}
    known = {(one.variant, one.parameters) for one in bare}
    within = {cell.contender for cells in gather(trials).values() for cell in cells}
    return bare | {one for one in within if (one.variant, one.parameters) not in known}


def _headline_title(gathered: Mapping[Ground, Sequence[Cell]], trials: Iterable[TrialRecord]) -> str:
    names = [*(ground.device_name for ground in gathered), *(record.host.device_name for record in trials)]
    return f"Attention on {wording.listed([markdown.text(device) for device in dict.fromkeys(names)])}"


def _summary(
    gathered: Mapping[Ground, Sequence[Cell]], records: Sequence[Record], trials: Sequence[TrialRecord]
) -> str:
    when = trust.days(chain(records, trials))
    bare = [_counted_cells(gathered)] if gathered else []
    return " · ".join([*bare, *([_counted_trials(trials)] if trials else []), *([when] if when else [])])


def _counted_trials(trials: Sequence[TrialRecord]) -> str:
    names = {record.case.task: None for record in trials}
    tasks = ", ".join("dropped in" if name == "news" else markdown.text(name) for name in names)
    return f"{tasks}: {inside.ended_well(trials)} of {wording.counted(len(trials), 'trial')} with a result"


def _counted_cells(gathered: Mapping[Ground, Sequence[Cell]]) -> str:
    cells = [cell for found in gathered.values() for cell in found]
    variants = {cell.contender.label for cell in cells}
    masks = ", ".join(markdown.text(mask) for mask in dict.fromkeys(cell.mask for cell in cells))
    modes = ", ".join(dict.fromkeys(cell.mode for cell in cells))
    measured = sum(cell.status == "measured" for cell in cells)
    lengths = wording.lengths(cell.length for cell in cells)
    counted = f"{measured} of {wording.counted(len(cells), 'cell')} measured"
    return f"{wording.counted(len(variants), 'variant')} · {masks} · {modes} · lengths {lengths} · {counted}"


def _apart(pages: Sequence[GroundPage], further: int) -> str:
    if len(pages) + further < 2:  # noqa: PLR2004  # nothing is apart from itself
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
    for command, run in dict.fromkeys((record.command or "", record.run_id) for record in records):
        commands.setdefault(command, []).append(run)
    parts = []
    for command, runs in commands.items():
        names = wording.listed([markdown.code(run) for run in runs])
        parts.append(
            f"Run {names}:\n\n{markdown.console([command])}" if command else f"Of run {names} no command was recorded."
        )
    return "\n\n".join(parts)
