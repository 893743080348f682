"""A variant that changes the clocks of the module `time` changes its own alone: ours were taken at import."""

from __future__ import annotations

import time
from pathlib import Path

from bench.record import Case, Measured, Settings
from bench.sweep import engine, messages
from bench.sweep.worker import Worker
from variants._contract import Workload

FILE = Path(__file__).parents[2] / "fixtures/faults/prints.py"
SETTINGS = Settings(threads=1, time_budget_seconds=0.02, timeout_seconds=60)


def going_backwards():
    """A clock on which every look at it costs a day."""
    now = [0.0]

    def look():
        now[0] -= 86400
        return now[0]

    return look


def test_clocks_that_a_variant_changes_are_not_ours(monkeypatch):
    monkeypatch.setattr("bench.sweep.worker.pin", lambda threads: None)  # this process serves other tests too
    worker = Worker(engine, lambda reply: None)
    worker.answer(messages.Prepare(variant="prints", file=str(FILE), device="cpu", settings=SETTINGS))
    workload = Workload(heads=2, kv_heads=2, query_length=16, key_length=16, head_dim=8)
    began = time.perf_counter()
    with monkeypatch.context() as patch:
        for name in ("perf_counter", "monotonic", "process_time"):
            patch.setattr(time, name, going_backwards())
        done = worker.answer(messages.Measure(case=Case(variant="prints", workload=workload)))
    took = time.perf_counter() - began
    assert isinstance(done.outcome, Measured), done.outcome
    assert min(done.seconds.values()) >= 0
    assert 0 < sum(done.seconds.values()) <= took
    assert done.outcome.setup_seconds > 0
    assert 0 < done.outcome.conditions["own_seconds"] < took
