"""``report``: a folder with README.md, pictures and CSV of one run or several."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMED = 2


@click.command()
@click.argument("files", nargs=-1, metavar="FILES…", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write into; an earlier report in it is replaced.  [default: reports/RUN_ID]",
)
@click.option("--baseline", metavar="VARIANT", help="What speed-ups are over.  [default: naive_sdpa, if it was run]")
@click.option(
    "--index",
    "index_of",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Write FOLDER/README.md over all reports in the folders below it; alone, or after the report of FILES.",
)
def command(*, files: tuple[Path, ...], out: Path | None, baseline: str | None, index_of: Path | None) -> int:
    """Write a report of run files: the answer first, then pictures, tables, what is missing, and how far to trust it.

    Reads records alone: no torch, no variants. Prints the path of the report's README.md.
    """
    if not files and index_of is None:
        raise click.UsageError("Missing argument 'FILES…'.")
    if files:
        click.echo(_report(files, out, baseline))
    if index_of is not None:
        from bench.report import index

        click.echo(index.write(index_of))
    return 0


def _report(files: tuple[Path, ...], out: Path | None, baseline: str | None) -> Path:
    from bench import store
    from bench.fidelity import trial
    from bench.report import inside, pages

    reading = store.read(*files, compactly=True, apart=trial.KINDS)
    tried = trial.of_lines(reading.apart)
    gc.freeze()  # a million records need not be looked through again and again
    gc.set_threshold(100_000)
    if out is None:
        out = Path("reports") / folder_name([record.run_id for record in (*reading.records, *tried.records)])
    readme = pages.write(reading, out, baseline=baseline, tried=tried)
    for problem in (*reading.problems, *tried.problems):
        click.echo(f"warning: {problem}", err=True)
    for kind, count in sorted(reading.skipped.items()):
        click.echo(f"warning: {count} lines of the unknown kind {kind!r} left out", err=True)
    if not inside.ended_well(tried.records) and all(record.status != "measured" for record in reading.records):
        click.echo("warning: nothing was measured in these runs; the report says why", err=True)
    return readme


def folder_name(run_ids: Sequence[str]) -> str:
    """The run's id, in characters that a path may have; of several runs the first two and how many more."""
    names = [re.sub(r"[^\w.-]+", "-", run_id).strip(".-") or "run" for run_id in dict.fromkeys(run_ids)]
    more = [f"{len(names) - _MOST_NAMED}-more"] if len(names) > _MOST_NAMED else []
    return "+".join([*names[:_MOST_NAMED], *more])
