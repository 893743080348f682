"""How many pairs there are follows from what they cost, and from nothing else."""

from __future__ import annotations

import pytest

from bench.ab.planning import MOST_CONFIRMING, MOST_SCREENING, Cost, Planner
from bench.errors import WrongUsageError
from bench.gate.inference import fewest_pairs
from bench.gate.policy import DEFAULT

COST = Cost(4.0, {str(number): 0.3 for number in range(40)})  # 16 s a pair
FRESH = fewest_pairs(40, DEFAULT.significance)


def test_a_pair_costs_its_processes_and_its_cases():
    assert COST.pair_seconds() == pytest.approx(16.0)
    assert COST.pair_seconds(["0", "1"]) == pytest.approx(4.6)


def test_without_a_budget_there_are_as_many_as_asked_for():
    planner = Planner(DEFAULT, pairs=9)
    assert planner.screening(COST, 1e6) == 9
    assert planner.confirming(COST, ["0"], 1e6) == 18


def test_screening_leaves_time_to_measure_every_case_again():
    budget, spent = 500.0, 60.0
    screening = Planner(DEFAULT, budget_seconds=budget).screening(COST, spent)
    assert FRESH < screening < MOST_SCREENING
    whole = spent + (screening - 1 + FRESH) * COST.pair_seconds()
    assert whole <= budget < whole + COST.pair_seconds()


def test_few_suspects_get_more_fresh_pairs_than_many():
    planner = Planner(DEFAULT, budget_seconds=500.0)
    few, many = (planner.confirming(COST, list(COST.case_seconds)[:count], 300.0) for count in (2, 40))
    assert few == MOST_CONFIRMING
    assert many == max(int(200 / 16), FRESH)
    assert planner.confirming(COST, [], 300.0) == 0


def test_a_budget_that_is_too_small_names_one_that_is_not():
    with pytest.raises(WrongUsageError, match=r"--budget 100: expected (\d+) seconds at least") as refused:
        Planner(DEFAULT, budget_seconds=100.0).screening(COST, 20.0)
    needed = float(str(refused.value).split("expected ")[1].split()[0])
    assert Planner(DEFAULT, budget_seconds=needed).screening(COST, 20.0) >= 4


@pytest.mark.parametrize(("cases", "fewest", "said"), [(1, 4, "that a case is"), (40, 6, "that one of 40 cases is")])
def test_pairs_that_can_show_nothing_are_refused_by_the_number_that_was_given(cases, fewest, said):
    refusal = rf"--pairs {fewest - 1}: .*{said} slower .*give --pairs {fewest} at least"
    with pytest.raises(WrongUsageError, match=refusal):
        Planner(DEFAULT, pairs=fewest - 1).check(cases)
    Planner(DEFAULT, pairs=fewest).check(cases)
