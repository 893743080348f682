"""The command line in this process, as a user would see it: what it prints, and its exit code."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from bench.cli import main
from bench.sweep import supervisor

FAKE = "tests.fixtures.fake_engine"


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def attnbench(capsys):
    """Run a command for real."""

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        return Ended(int(end.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def fake_bench(attnbench, monkeypatch):
    """Run a command whose workers measure nothing: no torch, made-up figures, and variants of the fake's own."""
    monkeypatch.setattr(supervisor, "ENGINE", FAKE)
    return attnbench
