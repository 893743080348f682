"""What a sweep does for each of its cases does not grow with their number: counted here, timed in tests/perf."""

from __future__ import annotations

import cProfile
import os
import pstats
import subprocess
from collections import Counter

import pytest

from bench import store

SOME, MORE, MANY = 20, 100, 500


@pytest.fixture
def counted(fake_bench, tmp_path, monkeypatch):
    """Runs a sweep of so many cases; gives what was done for it in this process, by kind."""
    counts = Counter()

    def counting(owner, name):
        real = getattr(owner, name)

        def call(*arguments, **options):
            counts[name] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    counting(subprocess, "Popen")
    counting(os, "fsync")
    counting(store._Parser, "__call__")

    def run(cases):
        counts.clear()
        file, lengths = tmp_path / f"{cases}.jsonl", ",".join(map(str, range(1, cases + 1)))
        with cProfile.Profile() as profile:
            ended = fake_bench("run", "--variants", "sound", "--seq-len", lengths, "--threads", "1", "--out", file)
        assert ended.code == 0, ended.err
        return {**counts, "function calls": pstats.Stats(profile).total_calls}

    return run


def test_work_grows_with_the_number_of_cases_and_no_faster(counted):
    counted(1)  # imports what is imported once
    some, more, many = (counted(cases) for cases in (SOME, MORE, MANY))
    assert some["Popen"] == many["Popen"] == 2  # one for questions, one that measures
    for kind in ("fsync", "__call__", "function calls"):
        of_one = (more[kind] - some[kind]) / (MORE - SOME)
        assert of_one >= 1
        assert many[kind] <= 1.05 * (more[kind] + (MANY - MORE) * of_one), kind
