"""Attentions that misbehave (tests/fixtures/faults): each costs its own case, and the next one is unaffected."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from bench.record import Case, Settings
from bench.sweep import supervisor
from bench.sweep.plan import Cell
from bench.sweep.stations import Spent, Station, outcomes
from tests.fixtures.sound import FAULTY
from variants._contract import Workload

FAULTS = Path(__file__).parents[2] / "fixtures/faults"
LENGTHS = (8, FAULTY, 16)

# fault → status, stage and what the message says; None where the case is measured all the same
EXPECTED = {
    "raises": ("failed", "build", "ValueError: the scores went astray"),
    "raises_unpicklable": ("failed", "build", "LocalError: <function"),
    "recurses": ("failed", "build", "RecursionError"),
    "interrupts": ("failed", "build", "KeyboardInterrupt"),
    "leaves": ("failed", "build", "SystemExit: 7"),
    "exits": ("crashed", "build", "the worker ended with exit code 3"),
    "prints_and_exits": ("crashed", "build", "exit code 4; it last printed: the pool is exhausted"),
    "closes_everything": ("crashed", "build", "the worker"),
    "aborts": ("crashed", "build", "died of SIGABRT, in fault (aborts.py, line "),
    "dereferences_null": ("crashed", "build", "died of SIGSEGV, in fault (dereferences_null.py, line "),
    "kills_its_parent": ("crashed", "build", "the worker died of SIGKILL"),
    "obstructs": ("crashed", "start", "the worker ended with exit code 5"),
    "loops": ("timeout", "build", "not done after 2 s"),
    "ignores_sigterm": ("timeout", "build", "not done after 2 s"),
    "starts_and_loops": ("timeout", "build", "not done after 2 s"),
    "stops": ("timeout", "build", "not done after 2 s"),
    "allocates": ("out_of_memory", "build", "0.29 GiB (--memory-limit)"),
    "forks": ("failed", "time", "it left child processes behind"),
    "leaves_children": ("failed", "time", "it left child processes behind"),
    "escapes": ("failed", "time", "it left child processes behind"),
    "hides": ("failed", "time", "it left child processes behind: python"),
    "escapes_and_exits": ("crashed", "build", "the worker ended with exit code 8"),
    "hides_and_exits": ("crashed", "build", "the worker ended with exit code 9"),
    "leaves_threads": None,
    "prints": None,
}


def workload(length):
    return Workload(query_length=length, key_length=length)


def station(**changes):
    settings = Settings(threads=1, time_budget_seconds=1.0, timeout_seconds=2.0)
    files = {name: str(FAULTS / f"{name}.py") for name in EXPECTED}
    common = {"device": "cpu", "settings": settings, "files": files, "engine": "tests.fixtures.fake_engine"}
    return Station(**{**common, "ceilings": {"copy_bytes_per_second": 1.0}, **changes})


def cells_of(*variants, lengths=LENGTHS, processes=1):
    return [
        Cell(Case(variant=variant, workload=workload(length)), process)
        for variant in variants
        for process in range(processes)
        for length in lengths
    ]


@pytest.fixture(scope="module")
def faulted():
    """Outcomes by variant and length of one sweep over all faults, and the processes that are left of it."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    limited = station(memory_bytes=300 << 20)
    found = {
        (cell.case.variant, cell.case.workload.query_length): outcome
        for cell, outcome in outcomes(cells_of(*EXPECTED), limited, seed="s", spent=Spent())
    }
    left = [process for process in psutil.process_iter(["environ", "cmdline"]) if is_ours(process)]
    left += [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    return found, left


def is_ours(process):
    """Whether a worker of this process started it, by its environment or, where it has none, by its arguments."""
    marks = [(process.info["environ"] or {}).get(supervisor._TOKEN, ""), *(process.info["cmdline"] or [])]
    return any(mark.startswith(f"{os.getpid()}.") for mark in marks)


@pytest.mark.parametrize("fault", [name for name, expected in EXPECTED.items() if expected])
def test_a_fault_has_its_status_its_stage_and_a_message_that_names_it(faulted, fault):
    outcome = faulted[0][fault, FAULTY]
    status, stage, message = EXPECTED[fault]
    assert (outcome.__struct_config__.tag, outcome.stage) == (status, stage), outcome
    assert message in outcome.message
    assert len(outcome.message) <= 400
    assert str(FAULTS.parent) not in outcome.message  # a record travels without paths


@pytest.mark.parametrize("fault", EXPECTED)
def test_the_other_cases_of_a_faulty_attention_are_measured(faulted, fault):
    for length in LENGTHS:
        if length != FAULTY:
            assert faulted[0][fault, length].seconds == [length * 1e-6] * 3
            assert faulted[0][fault, length].notes == []


def test_printing_changes_nothing(faulted):
    assert faulted[0]["prints", FAULTY].seconds == [FAULTY * 1e-6] * 3


def test_a_thread_left_behind_is_noted(faulted):
    (note,) = faulted[0]["leaves_threads", FAULTY].notes
    assert "straggler" in note


def test_no_process_is_left(faulted):
    assert faulted[1] == []


# --- order and time -------------------------------------------------------------------------------------------


def test_a_worker_serves_one_variant_in_one_replicate():
    spent = Spent()
    cells = cells_of("sound", "naive_sdpa", processes=2)
    done = [cell for cell, _ in outcomes(cells, station(), seed="s", spent=spent)]
    assert sorted(map(repr, done)) == sorted(map(repr, cells))
    assert spent.workers == 4
    assert spent.worker_seconds > 0
    assert set(spent.stage_seconds) == {"start", "build", "time"}


def test_the_next_case_begins_when_the_outcome_was_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_TRACE", str(tmp_path / "trace"))
    measuring = outcomes(cells_of("sound"), station(), seed="s", spent=Spent())
    next(measuring)
    time.sleep(0.3)
    assert len((tmp_path / "trace").read_text().split()) == 1
    next(measuring)
    assert len((tmp_path / "trace").read_text().split()) == 2
    measuring.close()


def test_closing_ends_the_worker():
    measuring = outcomes(cells_of("sound"), station(), seed="s", spent=Spent())
    next(measuring)
    assert psutil.Process().children()
    measuring.close()
    assert not psutil.Process().children()


def test_stages_are_told_with_their_cell():
    told = []
    cells = cells_of("sound", lengths=(8,))
    list(outcomes(cells, station(), seed="s", spent=Spent(), on_stage=lambda cell, stage: told.append((cell, stage))))
    assert told == [(cells[0], stage) for stage in ("start", "start", "build", "time")]


def test_a_worker_that_cannot_start_costs_its_variant_only(tmp_path):
    (tmp_path / "gone.py").write_text("import os; os._exit(9)")
    files = {"gone": str(tmp_path / "gone.py")}
    found = {
        (cell.case.variant, cell.case.workload.query_length): outcome
        for cell, outcome in outcomes(cells_of("gone", "sound"), station(files=files), seed="s", spent=Spent())
    }
    assert all("ended with exit code 9" in found["gone", length].message for length in LENGTHS)
    assert all(found["sound", length].seconds for length in LENGTHS)


def test_a_sweep_grows_linearly_in_workers_not_in_cases():
    spent = Spent()
    cells = cells_of("sound", lengths=range(1, 60))
    assert len(list(outcomes(cells, station(), seed="s", spent=spent))) == 59
    assert spent.workers == 1


def test_checking_alone_times_nothing():
    ((_, outcome),) = outcomes(cells_of("sound", lengths=(8,)), station(check_only=True), seed="s", spent=Spent())
    assert outcome.seconds == []


def test_each_worker_has_compiler_caches_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_TRACE", str(tmp_path / "trace"))
    list(outcomes(cells_of("sound", "naive_sdpa", lengths=(8, 16)), station(), seed="s", spent=Spent()))
    caches = (tmp_path / "trace").read_text().split()
    assert len(caches) == 4
    assert len(set(caches)) == 2
    assert not any(Path(cache).parent.exists() for cache in caches)
