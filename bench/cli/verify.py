"""``verify``: the oracle alone."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click

from bench import wording
from bench.cli import _interruption, _selection, _tables
from bench.errors import NotComparableError, WrongUsageError
from bench.record import Crashed, Failed, FellBack, Incorrect, Measured, Outcome, Timeout, Unsupported

if TYPE_CHECKING:
    from bench.sweep.blueprint import Blueprint
    from bench.sweep.plan import Cell

_WRONG = (Incorrect, Failed, Crashed, FellBack, Timeout)
_COLUMNS = (
    "variant",
    "lengths",
    "mask",
    "mode",
    "dtype",
    "own error",
    "tolerance",
    "gradients",
    "tolerance",
    "verdict",
)


@click.command("verify")
@_selection.options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a case on stdout.")
def command(*, as_json: bool, **chosen: Any) -> int:
    """Check every case against the variant's own dense float64 formula, without timing or weighing anything.

    Exits with 1 where a case is incorrect, or could not be checked since its variant failed. Trials of a suite have no
    formula of their own: they are left out.
    """
    import msgspec

    from bench.sweep import supervisor
    from bench.sweep.blueprint import draw_up
    from bench.sweep.scout import Scout

    suite = msgspec.structs.replace(_selection.suite_of(chosen), trials=())
    if not suite.sweeps:
        raise WrongUsageError("verify checks bare attentions, and this suite has trials alone; make them with run")
    with _interruption.terminated_like_interrupted():
        scouting = Scout(engine=supervisor.ENGINE, threads=suite.threads, timeout_seconds=suite.timeout)
        with scouting as scout:
            blueprint = draw_up(scout, suite, variant_files=chosen["variant_files"], shard=chosen["shard"])
        found = _verify(blueprint, chosen["memory_limit"])
    if as_json:
        _print_json(found)
    else:
        _tables.show(_COLUMNS, [_row(cell, outcome) for cell, outcome in found], right=_COLUMNS[5:9])
    if not any(isinstance(outcome, (Measured, *_WRONG)) for _, outcome in found):
        raise NotComparableError("nothing could be checked; the verdicts say why")
    return int(any(isinstance(outcome, _WRONG) for _, outcome in found))


def _verify(blueprint: Blueprint, memory_limit: str | None) -> list[tuple[Cell, Outcome]]:
    """The outcome of every case, in the order of the cases."""
    from bench.sweep import supervisor
    from bench.sweep.plan import Cell
    from bench.sweep.progress import Reporter
    from bench.sweep.stations import Spent, Station, outcomes

    cells = [Cell(case, 0) for case in blueprint.cases]
    found: dict[str, Outcome] = {
        case.key(): unsupported for case in blueprint.cases if (unsupported := blueprint.unsupported(case)) is not None
    }
    able = [cell for cell in cells if cell.case.key() not in found]
    station = Station(
        device=blueprint.device,
        settings=blueprint.settings,
        files=blueprint.files,
        memory_bytes=_selection.memory_bytes(memory_limit),
        check_only=True,
        engine=supervisor.ENGINE,
    )
    with (
        Reporter(able, lambda _: 1.0) as reporter,
        contextlib.closing(outcomes(able, station, seed="", spent=Spent(), on_stage=reporter.stage)) as checked,
    ):
        for cell, outcome in checked:
            found[cell.case.key()] = outcome
            reporter.done(cell, outcome)
    return [(cell, found[cell.case.key()]) for cell in cells]


def _row(cell: Cell, outcome: Outcome) -> tuple[str, ...]:
    workload = cell.case.workload
    lengths = "×".join(map(wording.length, dict.fromkeys((workload.query_length, workload.key_length))))
    name = (cell.case.variant, lengths, workload.mask, workload.mode, workload.dtype)
    match outcome:
        case Measured() | Incorrect():
            errors = (outcome.own_error, outcome.tolerance, outcome.gradient_error, outcome.gradient_tolerance)
            verdict = "correct" if isinstance(outcome, Measured) else f"incorrect: {outcome.message}"
            return (*name, *("" if error is None else f"{error:.1e}" for error in errors), verdict)
        case Unsupported():
            return (*name, "", "", "", "", f"unsupported: {'; '.join(outcome.reasons)}")
        case _:
            status = str(type(outcome).__struct_config__.tag).replace("_", " ")
            return (*name, "", "", "", "", f"{status} ({outcome.stage}): {outcome.message}")


def _print_json(found: list[tuple[Cell, Outcome]]) -> None:
    import msgspec

    for cell, outcome in found:
        built = msgspec.to_builtins({"case": cell.case, "outcome": outcome})
        click.echo(json.dumps(built, ensure_ascii=False))
