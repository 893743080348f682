"""``train``: variants inside a model, dropped into an encoder or trained for a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bench.cli import _execution, _selection

if TYPE_CHECKING:
    from bench.sweep.suite import Suite

_TASKS = "recall, copy, listops, needle, drop_in"
_KEYS = ("task", "variants", "skip", "seq_len")
_OF_SOME_TASKS = ("steps", "batch", "pairs", "documents", "mask")
_MOST_SEEDS = 1000


@click.command("train")
@click.option("--task", multiple=True, required=True, metavar="T,…", help=f"{_TASKS}.")
@click.option("--variants", multiple=True, required=True, metavar="A,B", help="By name or pattern, and no_attention.")
@click.option("--skip", multiple=True, metavar="C", help="Variants to leave out.")
@click.option("--seq-len", multiple=True, metavar="N,…", help="Lengths; 128 if not given.")
@click.option(
    "--seeds",
    type=click.IntRange(1, _MOST_SEEDS),
    metavar="N",
    default=1,
    show_default=True,
    help=f"How many, from 0 on; {_MOST_SEEDS} at most.",
)
@click.option("--steps", type=int, metavar="N", help="Of training, at most; 2000 if not given.")
@click.option("--batch", type=int, metavar="N", help="Sequences of a step of training; 32 if not given.")
@click.option("--pairs", type=int, metavar="N", help="Of a key and its value, for recall; 16 if not given.")
@click.option("--documents", type=int, metavar="N", help="Of a drop-in; 160 if not given.")
@click.option("--mask", metavar="M", help="Of the trained model's attention; full if not given.")
@click.option("--param", multiple=True, metavar="VARIANT.NAME=X,…", help="A variant's parameter.")
@click.option("--variant-file", "variant_files", multiple=True, metavar="FILE.py", help="Your own variant.")
@click.option("--device", default="auto", show_default=True, metavar="auto|cpu|cuda[:i]")
@click.option("--threads", type=int, metavar="N", default=1, show_default=True, help="CPU threads.")
@click.option("--shard", metavar="i/n", help="Every n-th trial from the i-th, to split them over machines.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Of a trial; 1800 if not given.")
@_execution.options
def command(**chosen: Any) -> None:
    """Try variants inside a model, and record how well it does.

    drop_in puts a variant into every layer of a sentence encoder that was trained with exact attention. The other
    tasks train a small model from scratch with it, until the task is solved or --steps are spent. Every trial is one
    line of the file. A task that exact attention does not solve on every seed ranks nothing: exit code 3. Suites can
    have the same as [[trial]] tables, and run makes them.

    \b
    attnbench train --task recall --variants sdpa_flash,nystrom,no_attention --seeds 3
    attnbench train --task drop_in --variants topk,bigbird,uniform --seq-len 256 --param bigbird.block=32
    """  # noqa: D301  # \b is click's, for lines that stay as they are
    _execution.carry_out(
        _suite_of(chosen),
        _execution.files_of(chosen),
        variant_files=chosen["variant_files"],
        shard=chosen["shard"],
    )


def _suite_of(chosen: dict[str, Any]) -> Suite:
    """The suite of one trial that the options spell.

    Raises:
        WrongUsageError: something in them is unusable.

    """
    from bench.sweep import suite

    table: dict[str, Any] = {name: _selection.values_of(name, chosen) for name in _KEYS if chosen[name]}
    table |= {name: chosen[name] for name in _OF_SOME_TASKS if chosen[name] is not None}
    table["seed"] = list(range(chosen["seeds"]))
    if chosen["param"]:
        table["param"] = _selection.parameters(chosen["param"])
    trial = suite.trial(table, lambda key: f"--{key.replace('_', '-')}")
    settings = {"device": chosen["device"], "threads": chosen["threads"]}
    if chosen["timeout"] is not None:
        settings["trial_timeout"] = chosen["timeout"]
    return suite.override(suite.Suite(sweeps=(), trials=(trial,)), axes={}, settings=settings)
