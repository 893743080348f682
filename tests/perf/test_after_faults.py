"""After a faulty case, the next one of the same attention takes as long as without it, within the noise floor."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import pytest

from bench.record import Case, Measured, Settings
from bench.sweep import plan
from bench.sweep.plan import Cell
from bench.sweep.stations import Spent, Station, outcomes
from tests.fixtures.sound import FAULTY
from variants._contract import Workload

pytestmark = [pytest.mark.perf, pytest.mark.timeout(1200)]

FAULTS = Path(__file__).parents[1] / "fixtures/faults"
SETTINGS = Settings(threads=1, time_budget_seconds=1.0, timeout_seconds=4.0)
LENGTH = 256
REPLICATES = 5
NEXT = 3

# Faults of every kind: in the process, of the process, and what is left behind.
SHOWN = [
    *("raises", "returns_nan", "sets_state", "wrong_later", "grows", "changes_inputs"),
    *("exits", "aborts", "loops", "ignores_sigterm", "allocates", "starts_and_loops"),
    *("leaves_threads", "leaves_children", "hides", "forks", "prints"),
]


def workload(length):
    """Small enough to stay in a core's cache: what main memory does, no two processes agree on."""
    return Workload(heads=1, kv_heads=1, query_length=length, key_length=length)


def medians(fault, lengths, replicates):
    """Of the sound case, where the lengths are measured in this order in each of so many workers, or a fresh one's."""
    found = []
    for replicate in range(replicates):
        cells = [Cell(Case(variant=fault, workload=workload(n)), replicate) for n in lengths]
        seed = next(seed for seed in map(str, itertools.count()) if next(plan.passes(cells, seed)) == cells)
        station = Station(
            device="cpu", settings=SETTINGS, files={fault: str(FAULTS / f"{fault}.py")}, memory_bytes=1 << 30
        )
        *_, (_, outcome) = outcomes(cells, station, seed=seed, spent=Spent())
        assert isinstance(outcome, Measured), outcome
        found.append(statistics.median(outcome.seconds))
    return found


@pytest.fixture(scope="module")
def floor():
    """Medians of the sound case alone."""
    return medians("raises", [LENGTH], REPLICATES)


@pytest.mark.parametrize("fault", SHOWN)
def test_the_next_case_takes_as_long(floor, fault):
    after = medians(fault, [FAULTY, LENGTH], NEXT)
    noise = max(max(floor) / min(floor), 1.03)
    ratio = statistics.median(after) / statistics.median(floor)
    print(f"{fault}: {ratio:.3f}, noise floor {noise:.3f}")  # noqa: T201  # for the record
    assert 1 / noise < ratio < noise
