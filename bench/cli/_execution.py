"""From a suite to a file, for `run` and `train` alike: cases and trials, each on disk before the next begins."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from bench import wording
from bench.cli import _interruption, _selection
from bench.errors import NotComparableError, WrongUsageError, unknown
from bench.record import Record, Status

if TYPE_CHECKING:
    from bench.fidelity.trial import TrialCase
    from bench.store import Appender
    from bench.sweep.blueprint import Blueprint
    from bench.sweep.plan import Cell
    from bench.sweep.progress import Reporter
    from bench.sweep.scout import Scout
    from bench.sweep.session import Session
    from bench.sweep.stations import Spent
    from bench.sweep.suite import Suite

RUNS = Path("results/runs")
RETRIABLE = [status for status in get_args(Status) if status != "measured"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def options(command: _Command) -> _Command:
    """Add the options that say where results go, and which are there already; :func:`files_of` reads them."""
    decorators = [
        click.option(
            "--out", type=click.Path(path_type=Path), metavar="FILE.jsonl", help=f"In {RUNS}/, named by the time."
        ),
        click.option(
            "--resume", is_flag=True, help="Go on with --out: what is missing, and trainings where they stood."
        ),
        click.option("--retry", multiple=True, metavar="STATUS,…", help="With --resume: repeat what has this status."),
        click.option("--dry-run", is_flag=True, help="Show the plan, with rough predictions, and measure nothing."),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


@dataclass(frozen=True, slots=True)
class Files:
    """Where results go. ``retry``: statuses of earlier results that do not count."""

    out: Path | None
    resume: bool
    retry: Sequence[str]
    is_dry: bool


def files_of(chosen: Mapping[str, Any]) -> Files:
    """What the options say of files, before anything starts.

    Raises:
        WrongUsageError: they do not fit together, or the file is there.

    """
    out: Path | None = chosen["out"]
    retry = _selection.values_of("retry", chosen)
    for status in retry:
        if status not in RETRIABLE:
            raise unknown("--retry: status", status, RETRIABLE)
    if out is None and chosen["resume"]:
        raise WrongUsageError("--resume: expected the file to go on with, give it as --out FILE.jsonl")
    if retry and not chosen["resume"]:
        raise WrongUsageError("--retry repeats what an earlier run has: give --resume and --out too")
    if out is not None:
        from bench import store

        store.refuse_unusable(out, resume=chosen["resume"] or chosen["dry_run"])
    return Files(out, resume=chosen["resume"], retry=retry, is_dry=chosen["dry_run"])


def carry_out(
    suite: Suite,
    files: Files,
    *,
    variant_files: Sequence[str] = (),
    shard: str | None = None,
    memory_limit: str | None = None,
    pytest_json: Path | None = None,
) -> None:
    """Make what a suite asks for and say what became of it, or only show the plan. ``pytest_json``: a file for times.

    Raises:
        NotComparableError: nothing came of it that could be compared; the file says why.

    """
    from bench.sweep import session, supervisor
    from bench.sweep.blueprint import draw_up
    from bench.sweep.scout import Scout

    memory_bytes = _selection.memory_bytes(memory_limit)
    scouting = Scout(engine=supervisor.ENGINE, threads=suite.threads, timeout_seconds=suite.attempt_timeout)
    with _interruption.terminated_like_interrupted(), scouting as scout:
        blueprint = draw_up(scout, suite, variant_files=variant_files, shard=shard)
        if files.is_dry:
            from bench.cli import _dry_run

            _dry_run.show(session.with_budget_of(blueprint, _there_already(files)), scout)
        else:
            _tell(blueprint, _carry_out(blueprint, scout, files, memory_bytes), pytest_json)


def _there_already(files: Files) -> Sequence[Record]:
    """What a run that is only planned would go on with."""
    from bench import store
    from bench.fidelity import trial

    if files.out is None or not files.resume or not files.out.exists():
        return []
    reading = store.read(files.out, apart=trial.KINDS)
    return [*reading.records, *trial.of_lines(reading.apart).records]


@dataclass(frozen=True, slots=True)
class _Made:
    """What was made just now, and where it stands with what was there before."""

    out: Path
    cells: list[Cell]
    tries: list[TrialCase]
    spent: Spent
    wall_seconds: float


def _carry_out(blueprint: Blueprint, scout: Scout, files: Files, memory_bytes: int | None) -> _Made:
    from bench import store
    from bench.fidelity import trial
    from bench.sweep import session, trials

    started = time.monotonic()
    run_id = session.new_run_id()
    out = files.out or RUNS / f"{run_id}.jsonl"
    arguments = click.get_current_context().obj or []
    left = functools.partial(_interruption.left_behind, out, arguments, checkpoints=_checkpoints(out))
    appending = store.Appender(out, resume=files.resume, apart=trial.KINDS, told=_warn)
    with _interruption.saying(left), appending as appender:
        before = trial.of_lines(appender.reading.apart)
        for problem in [*appender.reading.problems, *before.problems]:
            _warn(f"{problem}; that line is lost")
        there = [*appender.reading.records, *before.records]
        blueprint = session.with_budget_of(blueprint, there)
        this = session.begin(blueprint, scout, run_id=run_id, arguments=arguments)
        this = session.taken_up(this, there)
        cells = session.missing(blueprint.cells, appender.reading.records, files.retry)
        tries = trials.missing(blueprint.trials, before.records, files.retry)
        if not cells and not tries:
            click.echo(f"nothing is missing in {out}", err=True)
        spent = _make(_Work(blueprint, this, appender, memory_bytes), cells, tries)
    return _Made(out, cells, tries, spent, time.monotonic() - started)


def _warn(what: str) -> None:
    click.echo(f"warning: {what}", err=True)


def _checkpoints(out: Path) -> Path:
    return out.with_name(f".{out.name}.checkpoints")


def _tell(blueprint: Blueprint, made: _Made, pytest_json: Path | None) -> None:
    from bench import store
    from bench.cli import _summary
    from bench.fidelity import trial

    reading = store.read(made.out, apart=trial.KINDS)
    if reading.records:
        _summary.show(reading.records, baseline=blueprint.suite.baseline)
    refusals = _summary.show_trials(trial.of_lines(reading.apart).records)
    if made.cells or made.tries:
        now = [(cell.case.key(), cell.process) for cell in made.cells]
        _summary.show_time(reading.records, now, made.spent, made.wall_seconds)
    click.echo(f"results  {made.out}")
    if pytest_json is not None:
        from bench import pytest_json as export

        export.write(reading.records, pytest_json)
        click.echo(f"pytest-benchmark  {pytest_json}")
    click.echo(f"report it with  python -m bench report {made.out}", err=True)
    if not any(record.status == "measured" for record in reading.records) and None not in refusals:
        raise NotComparableError(
            "; ".join(filter(None, refusals)) or f"nothing was measured; {made.out} says of every case why"
        )


@dataclass(frozen=True, slots=True)
class _Work:
    blueprint: Blueprint
    session: Session
    appender: Appender
    memory_bytes: int | None


def _make(work: _Work, cells: list[Cell], tries: list[TrialCase]) -> Spent:
    """Every cell and every trial to its outcome, and every outcome to disk before the next begins."""
    from bench.sweep import estimate, trials
    from bench.sweep.plan import Cell
    from bench.sweep.progress import Reporter

    blueprint, this, appender = work.blueprint, work.session, work.appender
    unsupported = [(cell, outcome) for cell in cells if (outcome := blueprint.unsupported(cell.case)) is not None]
    appender.append(*(this.record(cell, outcome) for cell, outcome in unsupported))
    able = [cell for cell in cells if blueprint.unsupported(cell.case) is None]
    if unsupported:
        told = wording.reasons(reason for _, outcome in unsupported for reason in outcome.reasons)
        click.echo(f"{len(unsupported)} of {len(cells)} cases unsupported: {told}", err=True)
    seconds = {key: guess.case_seconds for key, guess in estimate.guesses(blueprint, this.host.ceilings).items()}
    seconds |= {case.key(): trials.expected_seconds(case) for case in tries}
    every = [*able, *(Cell(case, 0) for case in tries)]
    with Reporter(every, lambda cell: seconds[cell.case.key()]) as reporter:
        spent = _measure(work, able, reporter)
        if tries:
            started = time.monotonic()
            _try(work, tries, reporter)
            spent.trial_seconds = time.monotonic() - started
    return spent


def _measure(work: _Work, cells: list[Cell], reporter: Reporter) -> Spent:
    from bench.sweep import supervisor
    from bench.sweep.stations import Spent, Station, outcomes

    this, spent = work.session, Spent()
    station = Station(
        device=work.blueprint.device,
        settings=work.blueprint.settings,
        files=work.blueprint.files,
        ceilings=this.host.ceilings,
        memory_bytes=work.memory_bytes,
        engine=supervisor.ENGINE,
    )
    measured = outcomes(cells, station, seed=this.run_id, spent=spent, on_stage=reporter.stage)
    with contextlib.closing(measured):
        for cell, outcome in measured:
            record = this.record(cell, outcome)
            work.appender.append(record)
            reporter.done(cell, record.outcome)
    return spent


def _try(work: _Work, tries: list[TrialCase], reporter: Reporter) -> None:
    from bench.sweep import supervisor
    from bench.sweep.attempts import Bench, outcomes
    from bench.sweep.plan import Cell

    bench = Bench(
        device=work.blueprint.device,
        settings=work.blueprint.trial_settings,
        files=work.blueprint.files,
        checkpoints=_checkpoints(work.appender.path),
        memory_bytes=work.memory_bytes,
        engine=supervisor.ENGINE,
    )
    made = outcomes(tries, bench, lambda case, stage: reporter.stage(Cell(case, 0), stage))
    with contextlib.closing(made):
        for case, outcome in made:
            record = work.session.trial(case, outcome)
            work.appender.append(record)
            reporter.done(Cell(case, 0), record.outcome)
