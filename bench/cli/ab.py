"""``ab``: two revisions of a repository, interleaved in one job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli import _interruption, _selection, _verdicts
from bench.errors import WrongUsageError

if TYPE_CHECKING:
    from bench.ab.scope import Scope
    from bench.ab.sides import Side
    from bench.sweep.suite import Suite

RUNS = Path("results/runs")
SUITE = "gate"


@click.command("ab")
@click.argument("base")
@click.argument("head")
@_selection.options
@click.option("--time-budget", type=float, metavar="SECONDS", help="Of timing a case in one process.")
@click.option(
    "--repo",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="The repository of the two revisions, if not that of the current folder.",
)
@click.option("--install", is_flag=True, help="Install each revision into an environment of its own.")
@click.option(
    "--pairs",
    type=click.IntRange(min=2),
    metavar="K",
    help="Of processes to screen with; suspects get 2·K. As a rule, one case needs 4 and forty need 6.",
)
@click.option("--budget", type=float, metavar="SECONDS", help="For the whole job; 600 if there are no --pairs either.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help=f"For both runs; in {RUNS}/ if not given.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE.jsonl",
    help="Recorded by 'gate selftest': how much identical code differs here, case by case.",
)
@_verdicts.outputs
def command(base: str, head: str, **chosen: Any) -> int:
    """Measure two revisions of a repository alternately, in one job, and judge HEAD by BASE.

    The harness that runs measures both; the variants come from the revisions, or with --variant-file from files in
    them. Everything is screened with a few pairs of fresh processes. What looks changed is measured again with fresh
    pairs, and decided on those alone. Without a selection the suite 'gate' is taken, or only the variant files.

    \b
    attnbench ab main HEAD --budget 600
    attnbench ab v1.2 HEAD --repo ../kernels --variant-file mine.py --seq-len 1k,4k --device cuda
    """  # noqa: D301  # \b is click's, for lines that stay as they are
    from bench.ab import recording
    from bench.ab.job import Job
    from bench.ab.planning import DEFAULT_BUDGET_SECONDS, Planner
    from bench.gate.judgement import judge
    from bench.sweep import session

    started = time.monotonic()
    run_id = session.new_run_id()
    folder: Path = chosen["out"] or RUNS / run_id
    _refuse_existing(folder)
    policy = _verdicts.policy_of(chosen["policy"])
    budget = chosen["budget"] or (None if chosen["pairs"] else DEFAULT_BUDGET_SECONDS)
    calibration = recording.noise(recording.load(chosen["calibration"])) if chosen["calibration"] else {}
    with (
        _interruption.saying(lambda: _left_behind(folder)),
        _interruption.terminated_like_interrupted(),
        _scopes(base, head, chosen, run_id) as scopes,
    ):
        job = Job(
            scopes,
            Planner(policy, chosen["pairs"], budget),
            folder,
            calibration,
            memory_bytes=_selection.memory_bytes(chosen["memory_limit"]),
            say=_say,
            started=started,
        )
        cells = job.run()
    _say(f"both runs are in {folder}; {time.monotonic() - started:.0f} s in all")
    judgement = judge(cells, policy, base=base, head=head)
    _verdicts.show(judgement, chosen)
    return judgement.exit_code


def _say(line: str) -> None:
    click.echo(line, err=True)


def _refuse_existing(folder: Path) -> None:
    for file in (folder / "base.jsonl", folder / "head.jsonl"):
        if file.exists():
            raise WrongUsageError(f"--out: expected a folder without runs, but {file} exists; give another one")


def _left_behind(folder: Path) -> str:
    return f"everything measured so far is in {folder}" if any(folder.glob("*.jsonl")) else ""


@contextlib.contextmanager
def _scopes(base: str, head: str, chosen: Mapping[str, Any], run_id: str) -> Iterator[tuple[Scope, Scope]]:
    """Both sides, for as long as their work trees are there."""
    from bench.ab import scope, sides, trees
    from bench.sweep import supervisor

    files: tuple[str, ...] = chosen["variant_files"]
    with trees.checked_out(chosen["repo"], base, head) as checked_out:
        foreign = not any(sides.has_variants(tree) for tree in checked_out)
        if foreign and not files:
            raise WrongUsageError(
                f"expected --variant-file: {chosen['repo']} has no variants of its own; name files in it that have one"
            )
        both: list[Side] = []
        for tree, name in zip(checked_out, ("base", "head"), strict=True):
            if chosen["install"]:
                _say(f"installing {name}")
            both.append(
                sides.side_of(tree, name, variant_files=files, install=chosen["install"], engine=supervisor.ENGINE)
            )
        _refuse_absent(files, both)
        suite = _suite(chosen)
        first, second = scope.explore(
            both,
            suite,
            run_id=run_id,
            arguments=click.get_current_context().obj or [],
            shard=chosen["shard"],
            files_only=bool(files) and not chosen["variants"],
        )
        yield first, second


def _refuse_absent(files: tuple[str, ...], both: list[Side]) -> None:
    for file in files:
        if not any(path.endswith(file) for side in both for path in side.variant_files):
            raise WrongUsageError(f"--variant-file {file}: neither revision has it; give its path in the repository")


def _suite(chosen: Mapping[str, Any]) -> Suite:
    """That of the options; where they name none, no axis and no file, the suite that is made for this."""
    if chosen["variant_files"] or any(chosen[name] for name in ("suite_name", "param", *_selection.AXES)):
        return _selection.suite_of(chosen)
    return _selection.suite_of({**chosen, "suite_name": SUITE})
