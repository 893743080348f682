"""``baseline``: runs that are kept to compare with, per machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

ROOT = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results/baselines"),
    show_default=True,
    help="The folder of baselines.",
)
NAME = click.option("--name", default="main", show_default=True, help="One of several of a machine.")


@click.group("baseline")
def command() -> None:
    """Keep runs to compare with, per machine: save, list, show."""


@command.command("save")
@click.argument("run", metavar="RUN.jsonl", type=click.Path(path_type=Path))
@NAME
@ROOT
@click.option("--add", is_flag=True, help="Beside the runs that are there: what they differ by is noise.")
@click.option("--replace", is_flag=True, help="In the stead of what is there.")
def save(*, run: Path, name: str, root: Path, add: bool, replace: bool) -> int:
    """Keep a run as the baseline of the machine that it was made on.

    Several runs of the same code, made at different times and added to one another, tell how much runs differ here, and
    the gate asks for more than that.
    """
    from bench import store
    from bench.errors import WrongUsageError
    from bench.gate import baselines, comparable

    if add and replace:
        raise WrongUsageError("baseline save: expected --add or --replace, got both")
    reading = store.read(run)
    comparable.check_reading(reading, str(run))
    path = baselines.save(reading, name=name, root=root, add=add, replace=replace)
    kept = baselines.Baseline(name, path, store.read(path))
    if any(record.source.dirty for record in reading.records):
        click.echo("warning: the code of this run had uncommitted changes; nobody can say what it was", err=True)
    if kept.processes == 1:
        click.echo("warning: a run of one process is compared coarsely; measure with 'run --processes 10'", err=True)
    click.echo(f"{path}: {kept.cases} cases, {kept.processes} processes of {len(kept.runs)} runs")
    return 0


@command.command("list")
@ROOT
@click.option("--json", "as_json", is_flag=True, help="JSON instead of the table.")
def list_(*, root: Path, as_json: bool) -> int:
    """What is kept, for which machines."""
    from bench.cli import _tables
    from bench.gate import baselines

    rows = [_row(one) for one in baselines.find(root)]
    if as_json:
        import json

        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
    elif rows:
        columns = [*rows[0]]
        _tables.show(columns, [[str(value) for value in row.values()] for row in rows], right=columns[3:6])
    else:
        click.echo(f"no baselines in {root}; make one with 'baseline save RUN.jsonl'", err=True)
    return 0


def _row(one: Any) -> dict[str, Any]:
    return {
        "host": one.path.parent.name,
        "device": one.host.device_name,
        "name": one.name,
        "runs": len(one.runs),
        "processes": one.processes,
        "cases": one.cases,
        "revision": ", ".join(one.revisions),
        "at": one.at,
    }


@command.command("show")
@click.argument("host", required=False)
@NAME
@ROOT
def show(*, host: str | None, name: str, root: Path) -> int:
    """The cases of a baseline: median time, and by how much its processes differ.

    HOST is a fingerprint as 'list' shows it, or the beginning of one; it may be left out where there is one host.
    """
    from bench import stats, wording
    from bench.cli import _tables
    from bench.gate import baselines, naming

    kept = baselines.of_host(_host(host, root), name=name, root=root)
    medians = baselines.medians(kept)
    cases = {record.case.key(): record for record in kept.reading.records}
    rows = []
    for key, record in cases.items():
        values = medians.get(key)
        rows.append(
            [
                naming.named(record.case),
                record.status if values is None else wording.time(stats.estimate(values)),
                str(len(values or ())),
                "" if values is None or len(values) < 2 else wording.percent(max(values) / min(values) - 1),  # noqa: PLR2004  # a spread has two ends
            ]
        )
    _tables.show(["case", "seconds", "processes", "spread"], rows, right=["seconds", "processes", "spread"])
    return 0


def _host(wanted: str | None, root: Path) -> str:
    """The fingerprint meant.

    Raises:
        NotComparableError: there is none.
        WrongUsageError: none begins so, or several do.

    """
    from bench.errors import NotComparableError, WrongUsageError, unknown
    from bench.gate import baselines

    hosts = list(dict.fromkeys(one.path.parent.name for one in baselines.find(root)))
    if not hosts:
        raise NotComparableError(f"expected baselines in {root}, found none; make one with 'baseline save RUN.jsonl'")
    matching = [host for host in hosts if wanted is None or host.startswith(wanted)]
    if not matching:
        raise unknown("host", wanted, hosts)
    if len(matching) > 1:
        raise WrongUsageError(f"expected one host, got {wanted or 'none'}: give one of {', '.join(matching)}")
    return matching[0]
