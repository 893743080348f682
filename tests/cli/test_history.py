from __future__ import annotations

import json
import math
import random

import pytest

from bench.gate import history
from bench.record import encode
from tests.bench import runs


def at(number):
    return f"2024-03-{number + 1:02d}T12:00:00+00:00"


def series(count=20, *, change=10, slower=1.006, noise=0.002, lengths=(256, 512)):
    """A run a day; from ``change`` on the first length takes ``slower`` times as long."""
    found = []
    for number in range(count):
        source = runs.Source(git=f"{number:040d}"[::-1], dirty=False, versions=runs.SOURCE.versions)
        for length in lengths:
            draw = random.Random(f"{number} {length}")  # noqa: S311  # no secret
            factor = slower if number >= change and length == lengths[0] else 1.0
            seconds = 1e-6 * length * factor * math.exp(draw.gauss(0, noise))
            found.append(
                runs.record(
                    outcome=runs.measured([seconds]),
                    length=length,
                    run_id=f"run{number:02d}",
                    at=at(number),
                    source=source,
                )
            )
    return found


@pytest.fixture
def told(attnbench, tmp_path):
    def tell(records, *options):
        shuffled = random.Random(1).sample(records, len(records))  # noqa: S311  # no secret
        (tmp_path / "runs.jsonl").write_bytes(b"".join(encode(one) + b"\n" for one in shuffled))
        return attnbench("history", tmp_path / "runs.jsonl", *options)

    return tell


def test_a_change_below_any_margin_is_found_with_its_interval_and_revision(told):
    ended = told(series(), "--json")
    assert ended.code == 0
    (change,) = json.loads(ended.out)["changes"]
    assert change["case"] == "naive_sdpa full fwd 256"
    assert change["low"] < 1.006 < change["high"]
    assert change["low"] > 1.001
    assert change["earliest"]["at"] <= at(10) <= change["latest"]["at"]
    assert change["since"]["run_id"] in {"run09", "run10", "run11"}
    assert change["since"]["revision"].startswith(str(int(change["since"]["run_id"][3:]))[::-1])


def test_where_it_changed_is_told_no_better_than_it_is_known(told):
    (change,) = json.loads(told(series(30, change=15, noise=0.006, slower=1.009, lengths=(256,)), "--json").out)[
        "changes"
    ]
    assert change["earliest"]["at"] < change["latest"]["at"]
    assert change["earliest"]["at"] <= at(15) <= change["latest"]["at"]


def test_the_table_and_the_check(told):
    ended = told(series(), "--check")
    assert ended.code == 1
    assert "20 runs, 2 cases, 1 changes" in ended.out
    assert "1.006×" in ended.out
    assert told(series(slower=0.9), "--check").code == 0


def test_without_a_change_none_is_found(told):
    assert json.loads(told(series(slower=1.0), "--json").out)["changes"] == []


def test_creep_in_steps_is_found_in_steps(told):
    records = series(40, change=14, slower=1.02, noise=0.001, lengths=(256,))
    for number, record in enumerate(records):
        if number >= 27:
            record.outcome.seconds[0] *= 1.02
    changes = json.loads(told([r for r in records if r.at], "--json").out)["changes"]
    assert [change["since"]["run_id"] for change in changes] == ["run14", "run27"]


def test_too_few_runs_are_not_comparable_and_the_number_is_named(told):
    ended = told(series(8))
    assert ended.code == 3
    assert "expected 11 runs" in ended.err


def test_runs_of_other_settings_are_refused(told):
    records = series()
    other = runs.record(run_id="other", settings=runs.Settings(threads=9))
    assert told([*records, other]).code == 3
    assert told([*records, other], "--allow", "settings").code == 0


def test_identical_runs_seldom_show_a_change():
    """A hundred series of noise at 5%: about five."""
    case = runs.record().case
    found = 0
    for seed in range(100):
        draw = random.Random(seed)  # noqa: S311  # no secret
        members = [history.Run(str(n), at(n), "r", {case.key(): math.exp(draw.gauss(0, 0.01))}) for n in range(12)]
        found += bool(history.changes(members, [case], significance=0.05))
    assert found <= 11


def test_how_many_runs_can_show_anything():
    assert history.fewest_runs(1, 0.01) == 10
    assert 2 / math.comb(10, 5) <= 0.01 < 2 / math.comb(9, 4)
