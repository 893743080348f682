"""``gate selftest``: what the gate does with identical code, and with slow-downs that are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bench.cli import _interruption, _tables, _verdicts
from bench.errors import WrongUsageError

SUITE = "gate"
HOUR_SECONDS = 3600.0


@click.command("selftest")
@click.option("--hours", type=float, metavar="H", help="Of recording.")
@click.option("--budget", type=float, metavar="SECONDS", help="The same in seconds.")
@click.option("--suite", "suite_name", default=SUITE, show_default=True, metavar="NAME|FILE.toml", help="The cells.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.jsonl", help="Where to record.")
@click.option("--resume", is_flag=True, help="Go on with --out.")
@click.option(
    "--from",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE.jsonl",
    help="Record nothing: compute the table from these. May be given several times.",
)
@click.option("--suites", type=click.IntRange(min=1), default=300, show_default=True, help="To draw.")
@click.option("--screening", type=click.IntRange(min=2), help="Pairs to screen with.  [default: as ab at most]")
@click.option("--confirming", type=click.IntRange(min=2), help="Fresh pairs for suspects.  [default: as ab at most]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@click.option("--policy", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.toml", help="Margins.")
@_verdicts.output("--markdown", "Write the tables.")
def command(**chosen: Any) -> int:
    """Record rounds of identical code and of real slow-downs, and show what the gate makes of them.

    A slow-down is real extra work: a slice of the attention is computed twice, 1 to 10% of its pairs.
    Suites are drawn from the recorded rounds, no process twice in one. Exits with 1 if more than 1% of the suites of
    identical code raise a false alarm.

    \b
    attnbench gate selftest --hours 0.9 --out results/runs/selftest.jsonl
    attnbench gate selftest --hours 0.9 --out results/runs/selftest.jsonl --resume
    attnbench gate selftest --from results/runs/selftest.jsonl --markdown table.md
    """  # noqa: D301  # \b is click's, for lines that stay as they are
    from bench.ab import planning, recording, selftest, selftest_tables

    policy = _verdicts.policy_of(chosen["policy"])
    with _interruption.terminated_like_interrupted():
        files = chosen["files"] or (_record(chosen),)
    recorded = recording.load(files)
    test = selftest.SelfTest(
        recorded,
        policy,
        screening=chosen["screening"] or planning.MOST_SCREENING,
        confirming=chosen["confirming"] or planning.MOST_CONFIRMING,
        suites=chosen["suites"],
        seed=chosen["seed"],
    )
    test.check()
    tables = selftest_tables.tables(test)
    for table in tables:
        click.echo(f"\n{table.title}")
        _tables.show(table.columns, table.rows, right=table.columns[1:])
    if chosen["markdown"] is not None:
        _verdicts.write(chosen["markdown"], selftest_tables.as_markdown(tables))
    return int(test.alike().suites.value > policy.significance)


def _record(chosen: dict[str, Any]) -> Path:
    """The file of a recording that is made now."""
    from bench.ab.recording import Recorder
    from bench.sweep import suite

    if (chosen["hours"] is None) == (chosen["budget"] is None):
        raise WrongUsageError("expected how long to record: --hours or --budget, or --from with a recording")
    if chosen["out"] is None:
        raise WrongUsageError("expected where to record, as --out FILE.jsonl, so that it can be resumed")
    asked = suite.load(chosen["suite_name"])
    seconds = chosen["budget"] if chosen["budget"] is not None else chosen["hours"] * HOUR_SECONDS
    file: Path = chosen["out"]
    arguments = click.get_current_context().obj or []
    recorder = Recorder(
        suite=asked,
        file=file,
        seconds=seconds,
        resume=chosen["resume"],
        arguments=arguments,
        say=lambda line: click.echo(line, err=True),
    )
    with _interruption.saying(lambda: _interruption.left_behind(file, arguments)):
        recorder.record()
    return file
