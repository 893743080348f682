"""A sweep of 1,000 cases takes as long a case as one of 100: the cost of the harness alone, with a fake engine."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_survival import DRIVER, sweep

pytestmark = pytest.mark.perf

REPETITIONS = 3
ROOT = Path(__file__).parents[2]


def seconds(tmp_path, cases):
    """Of a whole sweep, in a process of its own."""
    file = tmp_path / "run.jsonl"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-c", DRIVER.format(before=""), *map(str, sweep(file, range(1, cases + 1)))]
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def test_a_case_of_many_takes_as_long_as_one_of_few(tmp_path):
    empty, few = (min(seconds(tmp_path, cases) for _ in range(REPETITIONS)) for cases in (1, 100))
    many = seconds(tmp_path, 1000)
    of_few, of_many = (few - empty) / 99, (many - empty) / 999
    print(f"\n{of_few * 1e3:.2f} ms a case of 100, {of_many * 1e3:.2f} ms a case of 1000")  # noqa: T201  # for the record
    assert of_many < 1.3 * of_few
