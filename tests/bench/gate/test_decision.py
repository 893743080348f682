from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.errors import NotComparableError, WrongUsageError
from bench.gate import decision, pairs
from bench.gate.judgement import judge
from bench.gate.pairs import Side
from bench.gate.policy import DEFAULT, Advisory, Margin, Policy, Removal, Where
from tests.bench.gate.pairs_of import MEASURED, case, cell, draw, suite

TODAY = dt.date(2024, 3, 1)


def around(centre, spread=0.001, pairs=16):
    return [centre + spread * (-1) ** number for number in range(pairs)]


def only(*cells, policy=DEFAULT):
    (found,) = decision.decide(cells, policy, today=TODAY)
    return found


# --- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_ratio", "verdict", "fails"),
    [
        (-0.0099, "unclear", None),
        (0.0, "same", None),
        (0.05, "slower", "regression"),
        (-0.05, "faster", None),
        (0.0099, "unclear", None),
    ],
)
def test_verdicts(log_ratio, verdict, fails):
    found = only(cell(around(log_ratio), confirmed=around(log_ratio)))
    assert (found.verdict, found.fails) == (verdict, fails)
    assert found.ratio.low < math.exp(log_ratio) < found.ratio.high


def test_faster_is_no_failure_of_the_job():
    assert judge([cell(around(-0.3), confirmed=around(-0.3))]).exit_code == 0


def test_one_regression_is_enough():
    cells = [cell(around(0), of=case(f"v{number}")) for number in range(30)]
    assert judge([*cells, cell(around(0.1), confirmed=around(0.1))]).exit_code == 1


def test_what_is_listed_may_not_be_certain_enough_to_fail_the_job():
    """Ten suspects that are all a little slower: each is likely, and Holm asks ten times as much of the first."""
    slow = around(0.02, 0.0105)
    found = decision.decide([cell(slow, confirmed=slow, of=case(f"v{number}")) for number in range(10)])
    assert {(one.verdict, one.fails) for one in found} == {("slower", None)}
    assert all(one.p > 0.01 for one in found)
    assert only(cell(slow, confirmed=slow)).fails == "regression"


def test_suspects_are_decided_on_their_fresh_pairs_alone():
    found = only(cell(around(0.05), confirmed=around(0.0)))
    assert found.verdict == "same"
    assert found.units == 16


def test_a_suspect_that_was_not_measured_again_is_unclear_and_the_job_says_so():
    judgement = judge([cell(around(0.05)), *(cell(around(0), of=case(f"v{number}")) for number in range(20))])
    assert judgement.decisions[0].verdict == "unclear"
    assert "fresh" in judgement.decisions[0].why
    assert judgement.exit_code == 4


def test_too_few_fresh_pairs_decide_nothing_and_the_number_needed_is_named():
    found = only(cell(around(0.05), confirmed=around(0.05, pairs=6)))
    assert (found.verdict, found.fails) == ("unclear", "inconclusive")
    assert "6 fresh pairs where 7 are needed" in found.why


def test_the_number_of_pairs_is_checked_before():
    decision.check_pairs(12, 40)
    with pytest.raises(WrongUsageError, match="expected 12 pairs"):
        decision.check_pairs(11, 40)


def test_suspects_are_those_beyond_the_margin_either_way():
    cells = [cell(around(value), of=case(f"v{value}")) for value in (0.0, 0.009, 0.02, -0.02)]
    assert [one.case.variant for one in decision.suspects(cells)] == ["v0.02", "v-0.02"]
    assert decision.suspects([cell(around(0.02), head=Side(status="failed"))]) == []


def test_own_noise_widens_the_margin_and_a_noisy_cell_is_advisory():
    noisy = cell(around(0.05, 0.02), confirmed=around(0.05, 0.02), noise=0.2)
    found = only(noisy)
    assert found.margin == pytest.approx(math.expm1(0.1))  # two standard errors of 16 pairs
    assert (found.verdict, found.advisory, found.noisy, found.fails) == ("unclear", True, True, None)
    assert only(replace(noisy, noise=None)).verdict == "slower"


def test_a_noisy_cell_that_is_slower_by_more_than_its_noise_still_fails():
    found = only(cell(around(0.7), confirmed=around(0.7), noise=0.2))
    assert (found.verdict, found.advisory, found.fails) == ("slower", False, "regression")


def test_only_noisy_cells_are_inconclusive():
    judgement = judge([cell(around(0.0, 0.03), noise=0.2)])
    assert judgement.noisy_share == 1.0
    assert judgement.decided_share is None
    assert judgement.exit_code == 4


def test_under_four_fifths_decided_is_inconclusive():
    clear = [cell(around(0.0), of=case(f"v{number}")) for number in range(4)]
    unclear = cell(around(0.0, 0.03), of=case("unclear"))
    assert judge([*clear, unclear]).exit_code == 0
    assert judge([*clear[:3], unclear]).exit_code == 4


def test_margins_by_policy():
    rules = Policy(margins=[Margin(where=Where(mode=("bwd",)), margin=0.2)])
    slow = around(0.1)
    assert only(cell(slow, confirmed=slow, of=case(mode="bwd")), policy=rules).verdict == "same"
    assert only(cell(slow, confirmed=slow), policy=rules).verdict == "slower"


def test_advisory_cells_are_reported_and_fail_nothing():
    rules = Policy(advisory=[Advisory(where=Where(variant=("naive_*",)), reason="known")])
    for bad in (cell(around(0.1), confirmed=around(0.1)), cell(head=Side()), cell(head=Side(status="crashed"))):
        found = only(bad, policy=rules)
        assert found.advisory
        assert found.fails is None
        assert "known" in found.why


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_comparable(value):
    with pytest.raises(NotComparableError):
        cell([0.0, value])
    with pytest.raises(NotComparableError):
        cell([0.0], noise=value)


@pytest.mark.parametrize(("head", "base"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (-1.0, 1.0)])
def test_a_time_of_nothing_is_not_comparable(head, base):
    with pytest.raises(NotComparableError, match="above 0"):
        pairs.log_ratio(head, base, case())


# --- status -------------------------------------------------------------------------------------------------------

PREDICTED = Side(status="out_of_memory", predicted=True)


@pytest.mark.parametrize(
    ("base", "head", "verdict", "code"),
    [
        (MEASURED, Side(), "missing", 3),
        (Side(status="unsupported"), Side(), "missing", 3),
        (MEASURED, PREDICTED, "missing", 3),
        *((MEASURED, Side(status=status), "broke", 1) for status in ("unsupported", "out_of_memory", "incorrect")),
        *((MEASURED, Side(status=status), "broke", 1) for status in ("timeout", "crashed", "failed", "fell_back")),
        (Side(status="unsupported"), Side(status="failed"), "broke", 1),
        (Side(status="incorrect"), Side(status="incorrect"), "broke", 1),
        (Side(), Side(status="incorrect"), "broke", 1),
        (Side(status="failed"), MEASURED, "fixed", 0),
    ],
)
def test_changes_of_status(base, head, verdict, code):
    others = [cell(around(0.0), of=case("other"))]
    judgement = judge([cell(base=base, head=head), *others])
    assert judgement.decisions[0].verdict == verdict
    assert judgement.exit_code == code


@pytest.mark.parametrize(
    ("base", "head"),
    [(Side(), MEASURED), (PREDICTED, MEASURED), (Side(status="unsupported"), Side(status="unsupported"))],
)
def test_what_cannot_be_compared_gets_no_verdict(base, head):
    assert decision.decide([cell(base=base, head=head)]) == []


def test_not_comparable_comes_before_a_regression():
    cells = [cell(head=Side()), cell(around(0.1), confirmed=around(0.1), of=case("slow"))]
    assert judge(cells).exit_code == 3
    assert judge(cells[1:]).exit_code == 1


@pytest.mark.parametrize(("until", "fails"), [(TODAY, None), (TODAY - dt.timedelta(days=1), "incomparable")])
def test_allowed_removals_expire(until, fails):
    rules = Policy(removals=[Removal(where=Where(variant=("naive_sdpa",)), until=until, reason="replaced")])
    assert only(cell(head=Side()), policy=rules).fails == fails


def test_nothing_measured_is_not_comparable():
    assert judge([cell(base=Side(status="failed"), head=Side(status="failed"))]).exit_code == 3
    assert judge([]).exit_code == 3


# --- by simulation ------------------------------------------------------------------------------------------------


def test_identical_code_fails_hardly_any_suite():
    """40 cells with a standard error of 0.5%: a hundred suites, of which one may fail."""
    random = np.random.default_rng(11)
    failing = [judge(suite(random, deviation=0.005 * math.sqrt(20))).failing("regression") for _ in range(100)]
    assert sum(map(bool, failing)) <= 1


def test_heavy_tails_fail_hardly_any_suite_either():
    random = np.random.default_rng(12)

    class Heavy:
        def normal(self, centre, deviation, size):
            return centre + deviation * random.standard_t(3, size)

    assert sum(bool(judge(suite(Heavy(), calibrated=False)).failing("regression")) for _ in range(60)) <= 1


@pytest.mark.parametrize(("slower", "least"), [(0.03, 0.60), (0.05, 0.90), (0.10, 0.99)])
def test_power_at_a_standard_error_of_half_a_percent(slower, least):
    random = np.random.default_rng(13)
    jobs = 60
    found = sum(
        decision.decide(suite(random, deviation=0.005 * math.sqrt(20), slower={0: slower}))[0].fails == "regression"
        for _ in range(jobs)
    )
    assert found / jobs >= least


def test_quiet_cells_of_identical_code_are_the_same():
    random = np.random.default_rng(14)
    verdicts = [one.verdict for _ in range(20) for one in decision.decide(suite(random, deviation=0.006))]
    assert verdicts.count("same") / len(verdicts) > 0.95


def test_decisions_are_pure():
    cells = suite(np.random.default_rng(15), slower={3: 0.1})
    before = list(cells)
    assert decision.decide(cells) == decision.decide(list(reversed(cells)))[::-1]
    assert cells == before
    assert draw(np.random.default_rng(1), 3) == draw(np.random.default_rng(1), 3)


def test_no_torch():
    for file in Path(decision.__file__).parent.glob("*.py"):
        assert "import torch" not in file.read_text()
