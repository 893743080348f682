"""What `compare`, `gate` and `ab` say: a table for people, files for CI, and annotations where hosted CI runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bench.errors import WrongUsageError

if TYPE_CHECKING:
    from bench.gate.judgement import Judgement
    from bench.gate.policy import Policy

_Command = TypeVar("_Command", bound=Callable[..., Any])

GITLAB_REPORT = "gl-code-quality-report.json"

_FILE = click.Path(path_type=Path, dir_okay=False)


def _in_a_folder(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """A file that is written at the end has its folder at the beginning: nobody waits for a slip to be told."""
    del context
    if path is not None and not path.parent.is_dir():
        name = parameter.opts[0]
        raise WrongUsageError(
            f"{name}: expected a file in a folder, but {path.parent} is none; make it, or give another"
        )
    return path


def output(option: str, text: str) -> Callable[[_Command], _Command]:
    """An option with a file to write."""
    return click.option(option, type=_FILE, metavar="FILE", callback=_in_a_folder, help=text)


def outputs(command: _Command) -> _Command:
    """The options ``policy`` and those of every output."""
    for option in reversed(
        [
            click.option(
                "--policy", type=_FILE, metavar="FILE.toml", help="Margins, advisory cases, allowed removals."
            ),
            click.option("--all", "everything", is_flag=True, help="Show the cells that are the same, too."),
            click.option("--json", "as_json", is_flag=True, help="JSON on stdout instead of the table."),
            output("--markdown", "Write a comment for a pull request."),
            output("--junit", "Write JUnit XML."),
            output("--code-quality", "Write a report as GitLab shows them."),
        ]
    ):
        command = option(command)
    return command


def policy_of(path: Path | None) -> Policy:
    """The policy of a file, or the default one.

    Raises:
        WrongUsageError: it cannot be used.

    """
    from bench.gate import policy, policy_file

    return policy.DEFAULT if path is None else policy_file.load(path)


def show(judgement: Judgement, chosen: dict[str, Any], *, gates: bool = True) -> None:
    """Everything that the options ask for, and what the environment's CI reads; ``gates``: the exit code is told too.

    Raises:
        WrongUsageError: a file that cannot be written.

    """
    from bench.gate import export, markdown

    if chosen["as_json"]:
        click.echo(export.as_json(judgement))
    else:
        _table(judgement, everything=chosen["everything"], gates=gates)
    on_gitlab = os.environ.get("GITLAB_CI") == "true"
    quality = chosen["code_quality"] or (Path(GITLAB_REPORT) if on_gitlab else None)
    for path, render in (
        (chosen["markdown"], markdown.render),
        (chosen["junit"], export.as_junit),
        (quality, export.gitlab),
    ):
        if path is not None:
            write(path, render(judgement))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in export.github(judgement):
            click.echo(line, err=True)
        _add_to_summary(markdown.render(judgement))


def write(path: Path, text: str) -> None:
    """A whole file, in a folder that is there.

    Raises:
        WrongUsageError: it cannot be written.

    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WrongUsageError(f"expected a file that can be written, cannot write {path}: {error.strerror}") from error


def _add_to_summary(text: str) -> None:
    """The page of a GitHub job; that it cannot be written is no reason to fail."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            click.echo(f"warning: cannot write the job's summary: {error.strerror}", err=True)


def _table(judgement: Judgement, *, everything: bool, gates: bool) -> None:
    from bench.cli import _tables
    from bench.gate import rows

    shown = rows.ordered(judgement) if everything else rows.changed(judgement)
    if shown:
        _show(rows.COLUMNS, [rows.decision(one) for one in shown], right=rows.RIGHT)
    if judgement.findings:
        _tables.show(rows.FINDINGS, [rows.finding(one) for one in rows.ordered_findings(judgement)])
    for problem in judgement.problems:
        click.echo(f"not comparable: {problem}")
    for line in rows.summary(judgement):
        click.echo(line)
    click.echo(judgement.headline + (f" (exit code {judgement.exit_code})" if gates else ""))


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str]) -> None:
    """Without the columns that are empty in every row."""
    from bench.cli import _tables

    kept = [number for number, _ in enumerate(columns) if any(row[number] for row in rows)]
    shown = [columns[number] for number in kept]
    _tables.show(shown, [[row[number] for number in kept] for row in rows], right=right)
