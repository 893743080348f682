from __future__ import annotations

import subprocess
import sys

import pytest

from bench.record import encode
from tests.bench import runs


@pytest.fixture
def files(tmp_path):
    def write(name, records):
        path = tmp_path / name
        path.write_bytes(b"".join(encode(one) + b"\n" for one in records))
        return path

    slow = [
        runs.record(outcome=runs.measured([2e-3 + 1e-6 * number]), process=number, run_id="slow") for number in range(6)
    ]
    base = [
        runs.record(outcome=runs.measured([1e-3 + 1e-6 * number]), process=number, run_id="base") for number in range(6)
    ]
    return write("base.jsonl", base), write("slow.jsonl", slow)


def test_it_tells_and_does_not_fail(attnbench, files):
    ended = attnbench("compare", *files)
    assert ended.code == 0
    assert "slower" in ended.out
    assert "2.00×" in ended.out
    assert "exit code" not in ended.out


def test_what_is_not_comparable_is_exit_3(attnbench, files):
    other = runs.record(outcome=runs.measured(), settings=runs.Settings(threads=9))
    files[1].write_bytes(encode(other) + b"\n")
    assert attnbench("compare", *files).code == 3


@pytest.mark.parametrize(
    "arguments",
    [["compare", "FILE", "FILE"], ["gate", "FILE", "FILE", "--json"], ["baseline", "list"], ["history", "--help"]],
    ids=lambda arguments: arguments[0],
)
def test_no_torch_is_imported(files, arguments):
    arguments = [str(files[0]) if word == "FILE" else word for word in arguments]
    code = f"""
import sys
from bench.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    assert not end.code, end.code
assert not {{"torch", "pandas", "matplotlib", "scipy.stats"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
