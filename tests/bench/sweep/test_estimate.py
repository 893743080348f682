from __future__ import annotations

import pytest

from bench.record import About, Case
from bench.sweep import estimate
from bench.sweep.messages import Prospect
from bench.sweep.plan import Cell
from variants._contract import Workload

CEILINGS = {"matmul_flops_per_second:float32": 3e9, "copy_bytes_per_second": 3e6}
CASE = Case(variant="x", workload=Workload(query_length=1024, key_length=2048))
LINEAR = About(family="exact", exact=True, memory_exponent=1)
QUADRATIC = About(family="exact", exact=True, memory_exponent=2)


def guessed(prospect, about=LINEAR, ceilings=CEILINGS, budget=2.0, case=CASE):
    return estimate.guess(case, about, prospect, ceilings, budget)


def test_a_call_reaches_a_third_of_the_lower_roof():
    assert guessed(Prospect(issued_flops=10**9, least_traffic_bytes=1)).call_seconds == pytest.approx(1)
    assert guessed(Prospect(issued_flops=1, least_traffic_bytes=10**6)).call_seconds == pytest.approx(1)


@pytest.mark.parametrize("prospect", [Prospect(), Prospect(issued_flops=1), Prospect(least_traffic_bytes=1)])
def test_without_knowledge_there_is_no_number(prospect):
    assert guessed(prospect).call_seconds is None


def test_without_the_ceiling_of_the_dtype_there_is_no_number():
    assert guessed(Prospect(issued_flops=1, least_traffic_bytes=1), ceilings={}).call_seconds is None


def test_a_short_call_takes_its_budget_and_a_long_one_takes_its_calls():
    short = guessed(Prospect(issued_flops=1, least_traffic_bytes=1))
    long = guessed(Prospect(issued_flops=10**11, least_traffic_bytes=1))
    assert 2 < short.case_seconds < 3
    assert long.case_seconds > 11 * long.call_seconds


def test_memory_follows_the_claimed_exponent():
    prospect = Prospect(issued_flops=1, least_traffic_bytes=1000)
    assert guessed(prospect).peak_bytes == 2000
    assert guessed(prospect, QUADRATIC).peak_bytes == 2000 + 2 * 8 * 1024 * 2048 * 4
    assert guessed(Prospect()).peak_bytes is None


def test_a_sweep_takes_its_cases_and_a_worker_per_variant_and_replicate():
    cells = [Cell(CASE, 0), Cell(CASE, 1)]
    guesses = {CASE.key(): estimate.Guess(None, 5.0, None)}
    assert estimate.sweep_seconds(cells, guesses) == 2 * (5 + estimate.WORKER_SECONDS)
