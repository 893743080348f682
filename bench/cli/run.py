"""``run``: a sweep from selection to file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from bench.cli import _interruption, _selection
from bench.errors import NotComparableError, WrongUsageError
from bench.record import Status

if TYPE_CHECKING:
    from bench.store import Appender
    from bench.sweep.blueprint import Blueprint
    from bench.sweep.plan import Cell
    from bench.sweep.scout import Scout
    from bench.sweep.session import Session
    from bench.sweep.stations import Spent

RUNS = Path("results/runs")
RETRIABLE = [status for status in get_args(Status) if status != "measured"]


@click.command("run")
@_selection.options
@click.option("--processes", type=int, metavar="K", help="Replicates, each a pass over all cases in fresh processes.")
@click.option("--baseline", metavar="VARIANT", help="Whom the summary's speed-ups are over; naive_sdpa if it is there.")
@click.option("--time-budget", type=float, metavar="SECONDS", help="Of timing, per case.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.jsonl", help=f"In {RUNS}/, named by the time.")
@click.option("--resume", is_flag=True, help="Go on with --out: measure only what is missing there.")
@click.option("--retry", multiple=True, metavar="STATUS,…", help="With --resume: repeat cases with this status.")
@click.option("--dry-run", is_flag=True, help="Show the plan, with rough predictions, and measure nothing.")
@click.option(
    "--pytest-benchmark-json",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the times also as pytest-benchmark does.",
)
def command(**chosen: Any) -> None:
    """Measure a sweep: time, memory, correctness and fidelity of every case, with proof of what ran.

    Every case is one line of the file, on disk before the next one starts. Lists are joined by commas; lengths take
    k (1024). With --suite, axes given here replace those of the suite.

    \b
    attnbench run --suite quick
    attnbench run --variants naive_sdpa,sdpa_flash --seq-len 512,2k --mask full,causal --mode fwd,bwd
    """  # noqa: D301  # \b is click's, for lines that stay as they are
    from bench.sweep import supervisor
    from bench.sweep.blueprint import draw_up
    from bench.sweep.scout import Scout

    suite = _selection.suite_of(chosen)
    retry = _statuses(chosen["retry"])
    _check_files(chosen, retry)
    with _interruption.terminated_like_interrupted(), Scout(engine=supervisor.ENGINE, threads=suite.threads) as scout:
        blueprint = draw_up(scout, suite, variant_files=chosen["variant_files"], shard=chosen["shard"])
        if chosen["dry_run"]:
            from bench.cli import _dry_run

            _dry_run.show(blueprint, scout)
        else:
            _run(blueprint, scout, chosen, retry)


def _statuses(texts: tuple[str, ...]) -> list[str]:
    from bench.errors import unknown

    statuses = [status.strip() for text in texts for status in text.split(",")]
    for status in statuses:
        if status not in RETRIABLE:
            raise unknown("--retry: status", status, RETRIABLE)
    return statuses


def _check_files(chosen: Mapping[str, Any], retry: list[str]) -> None:
    """What can be said of files before anything starts."""
    out: Path | None = chosen["out"]
    if out is None and chosen["resume"]:
        raise WrongUsageError("--resume: expected the file to go on with, give it as --out FILE.jsonl")
    if retry and not chosen["resume"]:
        raise WrongUsageError("--retry repeats cases of an earlier run: give --resume and --out too")
    if out is not None and out.exists() and not chosen["resume"] and not chosen["dry_run"]:
        raise WrongUsageError(
            f"expected a new file, but {out} exists: continue it with --resume, or give another --out"
        )


def _run(blueprint: Blueprint, scout: Scout, chosen: Mapping[str, Any], retry: list[str]) -> None:
    from bench import store
    from bench.cli import _summary
    from bench.sweep import session

    started = time.monotonic()
    run_id = session.new_run_id()
    out: Path = chosen["out"] or RUNS / f"{run_id}.jsonl"
    memory_bytes = _selection.memory_bytes(chosen["memory_limit"])
    with store.Appender(out, resume=chosen["resume"]) as appender:
        for problem in appender.reading.problems:
            click.echo(f"warning: {problem}; that line is lost", err=True)
        this = session.begin(blueprint, scout, run_id=run_id, arguments=click.get_current_context().obj or [])
        this = session.taken_up(this, appender.reading.records)
        cells = session.missing(blueprint.cells, appender.reading.records, retry)
        if not cells:
            click.echo(f"nothing is missing in {out}", err=True)
        spent = _measure(blueprint, this, cells, appender, memory_bytes)
    records = store.read(out).records
    _summary.show(records, baseline=blueprint.suite.baseline)
    if cells:
        _summary.show_time(records, [cell.case.key() for cell in cells], spent, time.monotonic() - started)
    click.echo(f"results  {out}")
    if chosen["pytest_benchmark_json"] is not None:
        from bench import pytest_json

        pytest_json.write(records, chosen["pytest_benchmark_json"])
        click.echo(f"pytest-benchmark  {chosen['pytest_benchmark_json']}")
    click.echo(f"report it with  python -m bench report {out}", err=True)
    if not any(record.status == "measured" for record in records):
        raise NotComparableError(f"nothing was measured; {out} says of every case why")


def _measure(
    blueprint: Blueprint, this: Session, cells: list[Cell], appender: Appender, memory_bytes: int | None
) -> Spent:
    """Every cell to its outcome, and every outcome to disk before the next cell begins."""
    from bench.sweep import estimate, supervisor
    from bench.sweep.progress import Reporter
    from bench.sweep.stations import Spent, Station, outcomes

    unsupported = [(cell, reasons) for cell in cells if (reasons := blueprint.unsupported(cell.case)) is not None]
    appender.append(*(this.record(cell, reasons) for cell, reasons in unsupported))
    able = [cell for cell in cells if blueprint.unsupported(cell.case) is None]
    if unsupported:
        click.echo(f"{len(unsupported)} of {len(cells)} cases are unsupported, as their records say", err=True)
    station = Station(
        device=blueprint.device,
        settings=blueprint.settings,
        files=blueprint.files,
        ceilings=this.host.ceilings,
        memory_bytes=memory_bytes,
        engine=supervisor.ENGINE,
    )
    guesses = estimate.guesses(blueprint, this.host.ceilings)
    spent = Spent()
    with (
        Reporter(able, lambda cell: guesses[cell.case.key()].case_seconds) as reporter,
        contextlib.closing(outcomes(able, station, seed=this.run_id, spent=spent, on_stage=reporter.stage)) as measured,
    ):
        for cell, outcome in measured:
            record = this.record(cell, outcome)
            appender.append(record)
            reporter.done(cell, record.outcome)
    return spent
