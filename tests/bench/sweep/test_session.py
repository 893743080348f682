from __future__ import annotations

import msgspec
import pytest

from bench.errors import NotComparableError
from bench.fidelity.trial import NO_ATTENTION, TrialCase
from bench.record import About, Case, Failed, Host, Measured, Settings, Source
from bench.sweep import session
from bench.sweep.plan import Cell
from variants._contract import Workload

MEASURED = Measured(
    seconds=[0.5],
    timer="fake",
    peak_bytes=1,
    setup_seconds=0.5,
    own_error=0.0,
    tolerance=1.0,
    useful_flops=1,
    issued_flops=1,
)
CELL = Cell(Case(variant="x", workload=Workload()), 1)
THIS = session.Session(
    run_id="r",
    about={"x": About(family="exact", exact=True)},
    settings=Settings(threads=1),
    host=Host(fingerprint="f", device_name="d"),
    source=Source(git=None, dirty=None),
)


def test_a_number_that_is_not_finite_fails_its_record_and_nothing_else():
    bad = Measured(
        **{name: getattr(MEASURED, name) for name in MEASURED.__struct_fields__} | {"seconds": [float("inf")]}
    )
    outcome = THIS.record(CELL, bad).outcome
    assert isinstance(outcome, Failed)
    assert "record.outcome.seconds[0] is inf" in outcome.message
    assert THIS.record(CELL, MEASURED).outcome == MEASURED


def test_trials_have_their_own_settings_and_are_taken_up_under_them():
    this = msgspec.structs.replace(THIS, trial_settings=Settings(threads=1, timeout_seconds=7))
    case = TrialCase(kind="task", task="copy", variant=NO_ATTENTION, workload=Workload())
    record = this.trial(case, Failed(stage="start", message="no"))
    assert (record.settings.timeout_seconds, record.about.family) == (7, "floor")
    later = msgspec.structs.replace(this, run_id="later")
    assert session.taken_up(later, [record]).run_id == "r"
    assert session.taken_up(later, [this.record(CELL, MEASURED)]).run_id == "r"
    other = msgspec.structs.replace(this, trial_settings=Settings(threads=1, timeout_seconds=8))
    with pytest.raises(NotComparableError, match="timeout_seconds 7 there, 8 here"):
        session.taken_up(other, [record, this.record(CELL, MEASURED)])


def test_run_ids_sort_by_time_and_differ():
    ids = [session.new_run_id() for _ in range(20)]
    assert len(set(ids)) == 20
    assert [one[:15] for one in ids] == sorted(one[:15] for one in ids)


@pytest.mark.parametrize(
    ("arguments", "spelled"),
    [
        (["run", "--out", "/home/somebody/x.jsonl"], "run --out x.jsonl"),
        (["run", "--out=/home/somebody/x.jsonl"], "run --out=x.jsonl"),
        (["run", "--suite", "../mine/s.toml", "--shard", "1/2"], "run --suite s.toml --shard 1/2"),
        (["run", "--variant-file", "~/v.py", "--mask", "causal+alibi"], "run --variant-file v.py --mask causal+alibi"),
    ],
)  # fmt: skip
def test_a_command_line_travels_without_folders(arguments, spelled):
    assert session.command_line(arguments) == f"python -m bench {spelled}"


def test_several_runs_in_a_file_cannot_be_resumed():
    records = [THIS.record(CELL, MEASURED), msgspec.structs.replace(THIS, run_id="s").record(CELL, MEASURED)]
    with pytest.raises(NotComparableError, match="file of one run to resume, it holds 2"):
        session.taken_up(THIS, records)
