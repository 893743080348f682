"""``history``: creep along a series of stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.compare import ALLOW

if TYPE_CHECKING:
    from bench.gate.history import Change, Run


@click.command("history")
@click.argument("files", nargs=-1, required=True, metavar="FILES…", type=click.Path(path_type=Path))
@click.option(
    "--significance", default=0.01, show_default=True, type=click.FloatRange(0, 1, min_open=True, max_open=True)
)
@click.option("--check", is_flag=True, help="Exit with 1 if anything got slower.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of the table.")
@ALLOW
def command(*, files: tuple[Path, ...], significance: float, check: bool, as_json: bool, allow: tuple[str, ...]) -> int:
    """Find where the time of a case changed for good, along runs made one after the other.

    Runs are put in the order of their times. A gate sees one step at a time and none below its margin; several small
    ones add up, and many runs together show them. Printed is the run and revision from which on it holds, between
    which ones it lies with 95%, and by how much.
    """
    from bench import store
    from bench.gate import comparable, history

    allowed = comparable.parse_allowed(allow)
    reading = store.read(*files)
    notes = [
        *comparable.check_reading(reading, ", ".join(map(str, files)), allowed),
        *comparable.check(reading.records, reading.records, allowed),
    ]
    runs = history.series(reading.records)
    cases = list({record.case.key(): record.case for record in reading.records if record.status == "measured"}.values())
    history.check_runs(runs, cases, significance)
    found = history.changes(runs, cases, significance=significance)
    if as_json:
        _json(found, runs)
    else:
        _table(found)
    for note in notes:
        click.echo(note, err=True)
    click.echo(f"{len(runs)} runs, {len(cases)} cases, {len(found)} changes", err=as_json)
    return int(check and any(change.is_slower for change in found))


def _table(found: list[Change]) -> None:
    from bench.cli import _tables
    from bench.gate import naming, rows

    if found:
        _tables.show(
            ["case", "after / before", "p", "since", "run", "between"],
            [
                [
                    naming.named(change.case),
                    rows.ratio(change.ratio),
                    rows.probability(change.p),
                    change.run.revision,
                    change.run.run_id,
                    f"{_place(change.earliest)} … {_place(change.latest)}",
                ]
                for change in found
            ],
            right=["after / before", "p"],
        )


def _place(run: Run) -> str:
    return f"{run.revision} ({run.run_id})"


def _json(found: list[Change], runs: list[Run]) -> None:
    import json

    from bench.gate import naming

    def place(run: Run) -> dict[str, str]:
        return {"run_id": run.run_id, "at": run.at, "revision": run.revision}

    built = {
        "runs": [place(run) for run in runs],
        "changes": [
            {
                "case": naming.named(change.case),
                "key": change.case.key(),
                "ratio": change.ratio.value,
                "low": change.ratio.low,
                "high": change.ratio.high,
                "p": change.p,
                "since": place(change.run),
                "earliest": place(change.earliest),
                "latest": place(change.latest),
            }
            for change in found
        ],
    }
    click.echo(json.dumps(built, indent=1, ensure_ascii=False))
