from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from bench.gate import exact, growth
from bench.gate.decision import timings
from bench.gate.judgement import judge
from bench.gate.policy import Accepted, Advisory, Policy, Where
from bench.record import Fidelity
from tests.bench.gate.pairs_of import MEASURED, case, cell

TODAY = dt.date(2024, 3, 1)


def difference(**changes):
    return exact.find([cell([0.0] * 8, head=replace(MEASURED, **changes))], today=TODAY)


WORSE = {
    "memory": {"peak_bytes": 1001},
    "flops": {"issued_flops": 21},
    "dispatch": {"dispatched": ("aten::bmm", "aten::softmax", "aten::copy_")},
    "recompiles": {"recompiles": 1},
    "graph breaks": {"graph_breaks": 1},
    "own error": {"own_error": 2e-5},
    "fidelity": {"fidelity": Fidelity(relative_error=0.501, cosine=0.9, mass_recall=0.8)},
}


@pytest.mark.parametrize("gate", WORSE)
def test_anything_worse_is_a_regression_however_little(gate):
    (found,) = difference(**WORSE[gate])
    assert (found.gate, found.fails) == (gate, "regression")
    assert judge([cell([0.0] * 8, head=replace(MEASURED, **WORSE[gate]))]).exit_code == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"peak_bytes": 999},
        {"issued_flops": 19},
        {"fidelity": Fidelity(relative_error=0.4, cosine=0.95, mass_recall=0.8)},
    ],
)
def test_better_is_told_and_no_failure(changes):
    (found, *more) = difference(**changes)
    assert all(one.fails is None for one in (found, *more))
    assert judge([cell([0.0] * 8, head=replace(MEASURED, **changes))]).exit_code == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"peak_bytes": 0},
        {"peak_bytes": None},
        {"issued_flops": 0},
        {"useful_flops": 9},
        {"own_error": None},
        {"fidelity": None},
        {"recompiles": None},
    ],
)
def test_a_figure_that_vanished_is_not_comparable(changes):
    found = difference(**changes)
    assert found
    assert {one.fails for one in found} == {"incomparable"}
    assert judge([cell([0.0] * 8, head=replace(MEASURED, **changes))]).exit_code == 3


def test_rounding_is_no_loss_of_fidelity():
    assert difference(fidelity=Fidelity(relative_error=0.5 + 4e-7, cosine=0.9 - 4e-7, mass_recall=0.8)) == []


@pytest.mark.parametrize("changes", [{"cosine": 0.89}, {"mass_recall": 0.79}])
def test_less_cosine_or_recall_is_worse(changes):
    known = {"relative_error": 0.5, "cosine": 0.9, "mass_recall": 0.8}
    (found,) = difference(fidelity=Fidelity(**(known | changes)))
    assert found.fails == "regression"


def test_the_order_of_kernels_is_no_difference():
    assert difference(dispatched=MEASURED.dispatched[::-1]) == []


def test_statuses_are_not_compared_here():
    assert exact.find([cell(head=replace(MEASURED, status="failed", peak_bytes=5000))]) == []


@pytest.mark.parametrize(
    ("rules", "fails"),
    [
        (Policy(accepted=[Accepted(where=Where(), gates=("memory",), until=TODAY, reason="meant")]), None),
        (Policy(accepted=[Accepted(where=Where(), gates=("flops",), until=TODAY, reason="meant")]), "regression"),
        (
            Policy(accepted=[Accepted(where=Where(), gates=("memory",), until=dt.date(2024, 2, 29), reason="meant")]),
            "regression",
        ),
        (Policy(advisory=[Advisory(where=Where(mask=("full",)), reason="meant")]), None),
    ],
)
def test_what_the_policy_accepts(rules, fails):
    (found,) = exact.find([cell([0.0], head=replace(MEASURED, peak_bytes=2000))], rules, today=TODAY)
    assert found.fails == fails
    assert ("meant" in found.note) == (fails is None)


# --- exponents ------------------------------------------------------------------------------------------------

LENGTHS = (256, 512, 1024, 2048)


def series(log_ratios, *, spread=0.001, heads=None, **more):
    heads = heads or [MEASURED] * len(LENGTHS)
    return [
        cell([value + spread * (-1) ** k for k in range(12)], head=head, of=case(length=length), **more)
        for length, value, head in zip(LENGTHS, log_ratios, heads, strict=True)
    ]


def found_in(cells):
    return [(one.gate, one.fails) for one in growth.find(timings(cells), today=TODAY)]


def test_a_steeper_growth_of_time_is_found():
    (found,) = growth.find(timings(series([0.0, 0.03, 0.06, 0.09])), today=TODAY)
    assert (found.gate, found.fails, found.case.workload.query_length) == ("time exponent", "regression", 2048)
    assert "+0.043" in found.head


@pytest.mark.parametrize(
    "log_ratios", [[0.05] * 4, [0.09, 0.06, 0.03, 0.0], [-0.2, -0.15, -0.1, -0.05], [0.0, 0.002, 0.004, 0.006]]
)
def test_equal_or_cheaper_growth_is_not(log_ratios):
    """All lengths slower alike, a flatter line, cheaper short lengths, and less than the margin."""
    assert found_in(series(log_ratios)) == []


def test_noise_makes_no_exponent():
    assert found_in(series([0.0, 0.03, 0.06, 0.09], spread=0.3)) == []
    assert found_in(series([0.0, 0.03, 0.06, 0.09], noise=0.5)) == []


def test_two_lengths_are_no_series():
    assert found_in(series([0.0, 0.03, 0.06, 0.09])[2:]) == []


def test_a_steeper_growth_of_memory_is_found():
    heads = [replace(MEASURED, peak_bytes=size) for size in (1000, 1100, 1300, 1700)]
    assert found_in(series([0.0] * 4, heads=heads)) == [("memory exponent", "regression")]


def test_less_memory_at_short_lengths_is_no_failure():
    heads = [replace(MEASURED, peak_bytes=size) for size in (500, 700, 900, 1000)]
    assert found_in(series([0.0] * 4, heads=heads)) == [("memory exponent", None)]
