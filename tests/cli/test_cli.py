from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import store
from bench.cli import COMMANDS
from bench.record import encode
from tests.bench import runs

ROOT = Path(__file__).parents[2]


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, **options
    )


def test_help_names_every_command(attnbench):
    ended = attnbench("--help")
    assert ended.code == 0
    assert all(f"  {name} " in ended.out for name in COMMANDS)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name in {"list", "run", "verify", "merge"}])
def test_help_of_a_command_needs_no_torch_and_documents_every_option(command):
    code = f"""
import sys
from bench.cli import main
try:
    main([{command!r}, "--help"])
finally:
    assert "torch" not in sys.modules
    assert "pandas" not in sys.modules
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "Usage: attnbench" in done.stdout


def test_the_module_and_its_exit_code():
    done = python("-m", "bench", "run", "--variants", "naive_sdpa", "--mask", "nonsense")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_command_is_exit_2(attnbench):
    assert attnbench("rum").code == 2


def test_an_unknown_option_is_exit_2_with_the_nearest(attnbench):
    ended = attnbench("run", "--variant", "naive_sdpa")
    assert ended.code == 2
    assert "--variants" in ended.err


@pytest.mark.parametrize("no_color", [{}, {"NO_COLOR": "1"}])
def test_piped_output_has_no_escapes(tmp_path, no_color):
    fake = "from bench.sweep import supervisor; supervisor.ENGINE = 'tests.fixtures.fake_engine'"
    code = f"{fake}; from bench.cli import main; main()"
    arguments = ["run", "--variants", "sound", "--seq-len", "8", "--out", str(tmp_path / "x.jsonl")]
    done = python("-c", code, *arguments, env={**os.environ, **no_color})
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "1/1 sound 8" in done.stderr


def to_a_closed_pipe(*arguments, before="", stderr=subprocess.PIPE):
    """A command whose stdout nobody reads; ``stderr`` STDOUT: nor that. ``before`` is code for it to begin with."""
    reader, writer = os.pipe()
    os.close(reader)
    code = f"{before}\nfrom bench.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=writer, stderr=stderr, check=False, cwd=ROOT
    )
    os.close(writer)
    return done


def test_a_reader_that_leaves_early_is_no_error():
    done = to_a_closed_pipe("--help")
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_sweep_goes_on_when_nobody_listens_any_more(tmp_path):
    fake = "from bench.sweep import supervisor; supervisor.ENGINE = 'tests.fixtures.fake_engine'"
    file = tmp_path / "x.jsonl"
    arguments = ["run", "--variants", "sound", "--seq-len", "8,16,32", "--out", file]
    assert to_a_closed_pipe(*arguments, before=fake, stderr=subprocess.STDOUT).returncode == 0
    assert len(store.read(file).records) == 3


def test_a_mistake_that_nobody_hears_of_is_exit_2():
    assert to_a_closed_pipe("run", "--mask", "nonsense", stderr=subprocess.STDOUT).returncode == 2


def test_a_verdict_that_nobody_reads_is_an_exit_code(tmp_path):
    for name, seconds in (("base", 1e-3), ("head", 2e-3)):
        records = [runs.record(outcome=runs.measured([seconds]), process=number, run_id=name) for number in range(6)]
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(encode(one) + b"\n" for one in records))
    done = to_a_closed_pipe("gate", tmp_path / "base.jsonl", tmp_path / "head.jsonl")
    assert (done.returncode, done.stderr) == (1, b"")
