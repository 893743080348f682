"""``train``: variants inside a model, dropped into an encoder or trained for a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli import _interruption, _selection
from bench.errors import NotComparableError, WrongUsageError, unknown

if TYPE_CHECKING:
    from bench.fidelity.trial import TrialRecord
    from bench.sweep.trials import Trial

RUNS = Path("results/runs")
_TASKS = ("recall", "copy", "listops", "needle", "drop_in")
_TIMEOUT_SECONDS = 1800.0


@click.command("train")
@click.option("--task", multiple=True, required=True, metavar="T,…", help=f"{', '.join(_TASKS)}.")
@click.option("--variants", multiple=True, required=True, metavar="A,B", help="By name or pattern, and no_attention.")
@click.option("--skip", multiple=True, metavar="C", help="Variants to leave out.")
@click.option("--seq-len", multiple=True, metavar="N,…", help="Lengths; 128 if not given.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="How many, from 0 on.")
@click.option("--steps", type=click.IntRange(min=20), default=2000, show_default=True, help="Of training, at most.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Sequences of a step.")
@click.option("--pairs", type=click.IntRange(min=1), default=16, show_default=True, help="Of a key and its value.")
@click.option("--documents", type=click.IntRange(min=40), default=160, show_default=True, help="Of a drop-in.")
@click.option("--mask", default="full", show_default=True, metavar="M", help="Of the trained model's attention.")
@click.option("--param", multiple=True, metavar="VARIANT.NAME=X,…", help="A variant's parameter.")
@click.option("--variant-file", "variant_files", multiple=True, metavar="FILE.py", help="Your own variant.")
@click.option("--device", default="auto", show_default=True, metavar="auto|cpu|cuda[:i]")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads.")
@click.option(
    "--timeout", type=float, default=_TIMEOUT_SECONDS, show_default=True, metavar="SECONDS", help="Of a trial."
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.jsonl", help=f"In {RUNS}/, named by the time.")
@click.option("--resume", is_flag=True, help="Go on with --out: trials that are missing, trainings where they stood.")
@click.option("--retry", multiple=True, metavar="STATUS,…", help="With --resume: repeat trials with this status.")
def command(**chosen: Any) -> None:
    """Try variants inside a model, and record how well it does.

    drop_in puts a variant into every layer of a sentence encoder that was trained with exact attention. The other
    tasks train a small model from scratch with it, until the task is solved or --steps are spent. Every trial is one
    line of the file. A task that exact attention does not solve on every seed ranks nothing: exit code 3.

    \b
    attnbench train --task recall --variants sdpa_flash,nystrom,no_attention --seeds 3
    attnbench train --task drop_in --variants topk,bigbird,uniform --seq-len 256 --param bigbird.block=32
    """  # noqa: D301  # \b is click's, for lines that stay as they are
    from bench.sweep import supervisor
    from bench.sweep.scout import Scout

    out: Path | None = chosen["out"]
    if chosen["resume"] and out is None:
        raise WrongUsageError("--resume: expected the file to go on with, give it as --out FILE.jsonl")
    if chosen["retry"] and not chosen["resume"]:
        raise WrongUsageError("--retry repeats trials of an earlier run: give --resume and --out too")
    trial = _trial_of(chosen)
    with (
        _interruption.terminated_like_interrupted(),
        Scout(engine=supervisor.ENGINE, threads=chosen["threads"]) as scout,
    ):
        _run(trial, scout, chosen)


def _trial_of(chosen: dict[str, Any]) -> Trial:
    from bench.sweep import suite
    from bench.sweep.trials import Trial

    tasks = _selection.values(chosen["task"])
    for task in tasks:
        if task not in _TASKS:
            raise unknown("--task: task", task, _TASKS)
    axes: dict[str, Any] = {"mask": chosen["mask"], "variants": _selection.values(chosen["variants"])}
    axes |= {name: _selection.values(chosen[name]) for name in ("skip", "seq_len") if chosen[name]}
    if chosen["param"]:
        axes["param"] = _selection.parameters(chosen["param"])
    (sweep,) = suite.override(suite.Suite(), axes=axes, settings={}).sweeps
    return Trial(
        task=tuple(dict.fromkeys(tasks)),
        variants=sweep.variants,
        skip=sweep.skip,
        seq_len=sweep.seq_len if chosen["seq_len"] else (128,),
        seed=tuple(range(chosen["seeds"])),
        mask=sweep.mask[0],
        param=sweep.parameters,
        **{name: chosen[name] for name in ("batch", "steps", "pairs", "documents")},
    )


def _run(trial: Trial, scout: Any, chosen: dict[str, Any]) -> None:
    from bench import store
    from bench.fidelity import trial as trials_of
    from bench.record import Settings
    from bench.sweep import session, trials

    settings = Settings(threads=chosen["threads"], timeout_seconds=chosen["timeout"])
    catalogued = scout.catalogue(chosen["variant_files"], chosen["device"])
    entries = {entry.name: entry for entry in catalogued.entries}
    every = trials.cases(
        [trial],
        list(entries),
        catalogued.device,
        lambda variant, given: scout.resolve(variant, entries[variant].file, given),
    )
    with scout:
        probed = scout.probe(catalogued.device, [], settings)
    this = session.Session(
        run_id=session.new_run_id(),
        about={name: entry.about for name, entry in entries.items()},
        settings=settings,
        host=probed.host,
        source=probed.source,
        command=session.command_line(click.get_current_context().obj or []),
    )
    out: Path = chosen["out"] or RUNS / f"{this.run_id}.jsonl"
    with store.Appender(out, resume=chosen["resume"]) as appender:
        before = trials_of.read(out).records if out.exists() else []
        this = session.taken_up(this, before)
        wanted = trials.missing(every, before, _selection.values(chosen["retry"]))
        if not wanted:
            click.echo(f"nothing is missing in {out}", err=True)
        bench = trials.Bench(
            device=catalogued.device,
            settings=settings,
            timeout_seconds=chosen["timeout"],
            files={name: entry.file for name, entry in entries.items()},
            checkpoints=out.with_name(f".{out.name}.checkpoints"),
        )
        with trials.TrialReporter(wanted) as reporter:
            for case, outcome in trials.outcomes(wanted, bench, reporter.step):
                record = trials.record(this, case, outcome)
                appender.append(record)
                reporter.ended(case, record.outcome)
    _tell(trials_of.read(out).records, out)


def _tell(records: Sequence[TrialRecord], out: Path) -> None:
    from bench.cli import _tables
    from bench.fidelity import comparison

    refused = []
    tables = comparison.tables(records)
    for table in tables:
        click.echo(f"\n{table.title}")
        _tables.show(table.columns, table.rows, right=table.columns[1:])
        if table.refusal:
            refused.append(table.refusal)
            click.echo(f"warning: {table.refusal}", err=True)
    click.echo(f"results  {out}")
    if tables and len(refused) == len(tables):
        raise NotComparableError("; ".join(refused))
