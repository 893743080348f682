"""``run``: a suite from selection to file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bench.cli import _execution, _selection


@click.command("run")
@_selection.options
@click.option("--trial-timeout", type=float, metavar="SECONDS", help="Per trial of a suite, 1800 if nobody says else.")
@click.option("--processes", type=int, metavar="K", help="Replicates, each a pass over all cases in fresh processes.")
@click.option("--baseline", metavar="VARIANT", help="Whom the summary's speed-ups are over; naive_sdpa if it is there.")
@click.option(
    "--time-budget",
    type=float,
    metavar="SECONDS",
    help="Of timing, per case and process; unless given, that of --resume, or 3 shared by processes, 0.3 at least.",
)
@_execution.options
@click.option(
    "--pytest-benchmark-json",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the times also as pytest-benchmark does.",
)
def command(**chosen: Any) -> None:
    """Measure a sweep: time, memory, correctness and fidelity of every case, with proof of what ran.

    Every case is one line of the file, on disk before the next one starts. Lists are joined by commas; lengths take
    k (1024). With --suite, axes given here replace those of the suite. Trials of a suite come after its sweeps: they
    take --variants, --skip, --param and --seed, and keep their own lengths and masks.

    \b
    attnbench run --suite quick
    attnbench run --variants naive_sdpa,sdpa_flash --seq-len 512,2k --mask full,causal --mode fwd,bwd
    """  # noqa: D301  # \b is click's, for lines that stay as they are
    _execution.carry_out(
        _selection.suite_of(chosen),
        _execution.files_of(chosen),
        variant_files=chosen["variant_files"],
        shard=chosen["shard"],
        memory_limit=chosen["memory_limit"],
        pytest_json=chosen["pytest_benchmark_json"],
    )
