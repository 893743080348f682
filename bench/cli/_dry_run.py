"""``--dry-run``: what would be measured and tried, about how long it would take, and what stands against it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import click

from bench import wording
from bench.cli import _tables
from bench.record import Case
from bench.sweep import estimate, trials
from bench.sweep.blueprint import Blueprint
from bench.sweep.scout import Scout

_COLUMNS = ("variant", "parameters", "lengths", "mask", "mode", "dtype", "~call", "~peak MiB", "~case", "unsupported")
_TRIAL_COLUMNS = ("trial", "variant", "parameters", "length", "mask", "seed", "~trial", "unsupported")


def show(blueprint: Blueprint, scout: Scout) -> None:
    """The plan on stdout: a row per case and per trial, then the sums. Measures nothing but the ceilings."""
    probed = scout.probe(blueprint.device, blueprint.dtypes, blueprint.settings)
    guesses = estimate.guesses(blueprint, probed.host.ceilings)
    if blueprint.cases:
        _show_cases(blueprint, guesses)
    if blueprint.trials:
        _show_trials(blueprint)
    _show_sums(blueprint, guesses)


def _show_cases(blueprint: Blueprint, guesses: Mapping[str, estimate.Guess]) -> None:
    rows = []
    for case in blueprint.cases:
        workload, guess = case.workload, guesses[case.key()]
        unsupported = blueprint.unsupported(case)
        rough = ("", "", "") if unsupported else _rough(guess)
        lengths = "×".join(map(wording.length, dict.fromkeys((workload.query_length, workload.key_length))))
        reasons = "; ".join(unsupported.reasons) if unsupported else ""
        shape = (lengths, workload.mask, workload.mode, workload.dtype)
        rows.append((case.variant, _parameters(case), *shape, *rough, reasons))
    _tables.show(_COLUMNS, rows, right=("lengths", "~call", "~peak MiB", "~case"))


def _show_trials(blueprint: Blueprint) -> None:
    rows = []
    for case in blueprint.trials:
        workload, reasons = case.workload, blueprint.reasons_against(case)
        rough = "" if reasons else wording.duration(trials.expected_seconds(case))
        shape = (wording.length(workload.query_length), workload.mask, str(workload.seed))
        rows.append((case.title, case.variant, _parameters(case), *shape, rough, "; ".join(reasons)))
    _tables.show(_TRIAL_COLUMNS, rows, right=("length", "seed", "~trial"))


def _parameters(case: Case) -> str:
    return " ".join(f"{name}={value}" for name, value in case.parameters.items())


def _rough(guess: estimate.Guess) -> tuple[str, str, str]:
    return (
        "?" if guess.call_seconds is None else wording.duration(guess.call_seconds),
        "?" if guess.peak_bytes is None else wording.mebibytes(guess.peak_bytes),
        wording.duration(guess.case_seconds),
    )


def _show_sums(blueprint: Blueprint, guesses: Mapping[str, estimate.Guess]) -> None:
    able = [cell for cell in blueprint.cells if not blueprint.unsupported(cell.case)]
    tries = [case for case in blueprint.trials if not blueprint.reasons_against(case)]
    seconds = estimate.sweep_seconds(able, guesses) + estimate.trials_seconds(tries)
    click.echo(f"device  {blueprint.device}, {wording.counted(blueprint.settings.threads, 'thread')}")
    if blueprint.cases:
        unsupported = len(blueprint.cells) - len(able)
        processes = wording.counted(blueprint.suite.processes, "process")
        click.echo(f"cases  {len(blueprint.cases)}, in {processes} each; {unsupported} unsupported")
    if blueprint.trials:
        click.echo(f"trials  {len(blueprint.trials)}; {len(blueprint.trials) - len(tries)} unsupported")
    click.echo(f"time  about {dt.timedelta(seconds=round(seconds))} at most, without compilation")
    click.echo(
        "Columns with ~ are rough, from FLOPs, claimed memory and the ceilings measured just now: "
        "right within a factor of a few."
    )
    if blueprint.trials:
        click.echo("Trainings are taken to need all their steps; one that is solved ends earlier.")
