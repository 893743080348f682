"""Replicates: the time budget that they share, going on with more of them, and where the time of a run went."""

from __future__ import annotations

import re

import pytest

from bench import store
from bench.cli import _summary
from bench.sweep.stations import Spent
from tests.bench import runs


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def sweep(file, processes, *more):
    return ["run", "--variants", "sound", "--seq-len", "8", "--processes", processes, "--out", file, *more]


def budgets(file):
    return [(one.process, one.settings.time_budget_seconds) for one in store.read(file).records]


# --- their time budget ----------------------------------------------------------------------------------------


def test_more_replicates_go_on_with_the_budget_that_there_was(fake_bench, file):
    assert fake_bench(*sweep(file, 2)).code == 0
    ended = fake_bench(*sweep(file, 3, "--resume"))
    assert ended.code == 0, ended.err
    assert budgets(file) == [(0, 1.5), (1, 1.5), (2, 1.5)]
    assert len({one.run_id for one in store.read(file).records}) == 1


def test_a_budget_that_is_given_is_held_against_the_one_that_there_was(fake_bench, file):
    fake_bench(*sweep(file, 2))
    ended = fake_bench(*sweep(file, 3, "--resume", "--time-budget", 1))
    assert ended.code == 3
    assert "settings (time_budget_seconds 1.5 there, 1.0 here)" in ended.err
    assert fake_bench(*sweep(file, 3, "--resume", "--time-budget", 1.5)).code == 0


def planned(fake_bench, *arguments):
    """The seconds of a plan."""
    ended = fake_bench(*arguments, "--dry-run")
    assert ended.code == 0, ended.err
    hours, minutes, seconds = map(int, re.search(r"time  about (\d+):(\d+):(\d+)", ended.out).groups())
    return 3600 * hours + 60 * minutes + seconds


@pytest.mark.parametrize(
    ("processes", "more", "budget"), [(1, [], 3.0), (10, [], 0.3), (10, ["--time-budget", 2], 2.0)]
)
def test_a_plan_counts_with_the_budget_of_the_run(fake_bench, file, processes, more, budget):
    """A worker takes 3 s, and what is not timed of a case 0.2."""
    expected = pytest.approx(processes * (3 + 0.2 + budget), abs=1)
    assert planned(fake_bench, *sweep(file, processes, *more)) == expected
    two = sweep(file, processes, *more, "--seq-len", "16", "--shard", "2/2")
    assert planned(fake_bench, *two) == expected
    assert fake_bench(*two).code == 0
    assert budgets(file) == [(process, budget) for process in range(processes)]


def test_a_plan_to_go_on_counts_with_the_budget_that_there_was(fake_bench, file):
    fake_bench(*sweep(file, 1))
    assert planned(fake_bench, *sweep(file, 10, "--resume")) == pytest.approx(10 * (3 + 0.2 + 3), abs=1)


def test_the_command_that_repeats_a_run_has_every_digit_of_its_budget(attnbench, fake_bench, file):
    fake_bench(*sweep(file, 7))
    ended = attnbench("recommend", file, "--seq-len", "9")
    assert f" --time-budget {3 / 7} " in ended.err


# --- where the time went --------------------------------------------------------------------------------------


def test_only_what_was_measured_now_has_taken_time(capsys):
    """Of a case of which other replicates were there already, and of one that was there."""
    records = [
        runs.record(length=length, process=process, outcome=runs.measured(conditions={"own_seconds": 1.0}))
        for length in (8, 16)
        for process in (0, 1, 2)
    ]
    now = [record.identity() for record in records if record.process == 2 and record.case.workload.query_length == 8]
    spent = Spent(worker_seconds=2.0, workers=1)
    spent.stage_seconds["time"] = 4.0
    _summary.show_time(records, now, spent, 10.0)
    assert (
        "own code 10%, checking and preparing cases 30%, starting 1 worker 20%, the rest 40%" in capsys.readouterr().out
    )
