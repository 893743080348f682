"""The command line: one module a command, imported only when it is the one that runs.

Results go to stdout, talk to stderr. A mistake of the user's is one line and exit code 2.
"""

from __future__ import annotations

import importlib
import sys

import click

from bench import __version__
from bench.cli import _audience
from bench.errors import BenchError, WrongUsageError

INTERRUPTED = 130

# command -> its module, which holds a click command named `command`, and its one-line help
COMMANDS = {
    "list": "variants, what they are, and whether they can run here",
    "run": "measure a sweep",
    "train": "try variants inside a model: dropped in, or trained for a task",
    "verify": "check every variant against its own formula, without timing",
    "report": "markdown and plots of runs",
    "recommend": "what to use for one shape, from runs",
    "merge": "join shards and hosts into one file",
    "compare": "two runs, as a table of verdicts",
    "gate": "the same as an exit code, for CI",
    "ab": "two revisions, measured alternately in one job",
    "baseline": "keep runs to compare with, per machine",
    "history": "find creep along a series of runs",
    "doctor": "say whether this machine is fit to measure",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"bench.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101  # a mistake of ours, not the user's
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help without importing any command."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="attention-bench")
def cli() -> None:
    """Measure time, memory, correctness and fidelity of attention, and prove what ran."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    with _audience.may_leave():
        code = _code_of(sys.argv[1:] if arguments is None else arguments)
    sys.exit(code)


def _code_of(arguments: list[str]) -> int:
    """The exit code of a command line, which is carried out."""
    try:
        _refuse_empty(arguments)
        code = cli.main(arguments, prog_name="attnbench", standalone_mode=False, obj=arguments)
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        click.echo(help_wanted.format_message())
        return 2
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except BenchError as error:
        return _complain(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort) as interruption:  # click makes the one into the other
        left = str(interruption.__cause__ or interruption)
        return _complain(f"interrupted; {left}" if left else "interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _refuse_empty(arguments: list[str]) -> None:
    """An empty text is most likely a shell variable that is not set, and not the wish to measure everything."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        option, equals, value = argument.partition("=")
        if not argument.strip():
            what = f"{before}: " if before.startswith("-") and "=" not in before else ""
        elif option.startswith("--") and equals and not value.strip():
            what = f"{option}: "
        else:
            continue
        raise WrongUsageError(f"{what}expected a value, got an empty text; is a shell variable not set?")


def _complain(message: str, code: int) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code
