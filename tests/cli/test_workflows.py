"""The workflows and docs/ci.md say what the command line understands."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from bench.cli import COMMANDS, cli
from bench.gate import policy_file
from tests.bench.gate.pairs_of import case

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/ci.md"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))

# to the end of the line, of lines that a backslash continues, and of lines that begin with an option
_INVOKED = re.compile(r"python -m bench (\w+)((?:[^\n]*\\\n|[^\n]*\n(?=\s+--))*[^\n]*)")


def options(command):
    found = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        found |= {name for sub in command.list_commands(context) for name in options(command.get_command(context, sub))}
    return found


@pytest.mark.parametrize("file", [*WORKFLOWS, PAGE], ids=lambda file: file.name)
def test_every_command_and_option_exists(file):
    invoked = _INVOKED.findall(file.read_text())
    assert invoked
    for name, rest in invoked:
        assert name in COMMANDS, name
        known = options(cli.get_command(click.Context(cli), name))
        given = set(re.findall(r"(?<=\s)--[a-z-]+", rest))
        assert given <= known, (name, given - known)


def test_the_policy_of_the_page_works():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    rules = policy_file.parse(tomllib.loads(text))
    assert rules.margin_of(case("reformer_lsh", mask="window:64", mode="fwd_bwd")) == 0.03
    assert rules.acceptance(case("bigbird"), "memory", dt.date(2030, 1, 31)) is not None


def test_the_page_names_every_key_and_gate():
    page = PAGE.read_text()
    keys = [*policy_file._SHARES, *policy_file._PROBABILITIES, *policy_file._LISTS]
    assert all(re.search(rf"^(\[\[)?{key}", page, re.MULTILINE) for key in keys)
    assert all(f"`{gate}`" in page for gate in policy_file.get_args(policy_file.Gate))


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed (nox -s workflows)")
def test_actionlint_finds_nothing():
    done = subprocess.run([shutil.which("actionlint")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
