"""``run --dry-run``: what would be measured, about how long it would take, and what stands against it."""

from __future__ import annotations

import datetime as dt

import click

from bench import wording
from bench.cli import _tables
from bench.sweep import estimate
from bench.sweep.blueprint import Blueprint
from bench.sweep.plan import Cell
from bench.sweep.scout import Scout

_COLUMNS = ("variant", "parameters", "lengths", "mask", "mode", "dtype", "~call", "~peak MiB", "~case", "unsupported")


def show(blueprint: Blueprint, scout: Scout) -> None:
    """The plan on stdout: a row per case, then the sums. Measures nothing but the ceilings."""
    probed = scout.probe(blueprint.device, blueprint.dtypes, blueprint.settings)
    guesses = estimate.guesses(blueprint, probed.host.ceilings)
    rows = []
    for case in blueprint.cases:
        workload, guess = case.workload, guesses[case.key()]
        unsupported = blueprint.unsupported(case)
        rough = ("", "", "") if unsupported else _rough(guess)
        parameters = " ".join(f"{name}={value}" for name, value in case.parameters.items())
        lengths = "×".join(map(wording.length, dict.fromkeys((workload.query_length, workload.key_length))))
        reasons = "; ".join(unsupported.reasons) if unsupported else ""
        rows.append((case.variant, parameters, lengths, workload.mask, workload.mode, workload.dtype, *rough, reasons))
    _tables.show(_COLUMNS, rows, right=("lengths", "~call", "~peak MiB", "~case"))
    _show_sums(blueprint, [cell for cell in blueprint.cells if not blueprint.unsupported(cell.case)], guesses)


def _rough(guess: estimate.Guess) -> tuple[str, str, str]:
    return (
        "?" if guess.call_seconds is None else wording.duration(guess.call_seconds),
        "?" if guess.peak_bytes is None else wording.mebibytes(guess.peak_bytes),
        wording.duration(guess.case_seconds),
    )


def _show_sums(blueprint: Blueprint, able: list[Cell], guesses: dict[str, estimate.Guess]) -> None:
    seconds = estimate.sweep_seconds(able, guesses)
    unsupported = len(blueprint.cells) - len(able)
    click.echo(f"device  {blueprint.device}, {blueprint.settings.threads} threads")
    click.echo(
        f"cases  {len(blueprint.cases)}, in {blueprint.suite.processes} processes each; {unsupported} unsupported"
    )
    click.echo(f"time  about {dt.timedelta(seconds=round(seconds))} at most, without compilation")
    click.echo(
        "Columns with ~ are rough, from FLOPs, claimed memory and the ceilings measured just now: "
        "right within a factor of a few."
    )
