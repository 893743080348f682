"""Rounds without processes: who is visited when, and what is asked."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest

from bench.ab import turns
from bench.ab.rounds import Rounds
from bench.ab.scope import Scope
from bench.ab.sides import Side
from bench.ab.turns import FEWEST_ROWS
from bench.record import Case, Crashed, Failed, Incorrect, Settings, Unsupported
from bench.sweep.messages import Block
from bench.sweep.session import Session
from tests.bench.runs import ABOUT, CPU, SOURCE, measured
from variants._contract import Workload

CASES = {
    case.key(): case
    for case in (Case(variant="naive_sdpa", workload=Workload(query_length=length)) for length in range(1, 9))
}


def scope(name, cases=CASES, unsupported=(), look_seconds=0.1):
    settings = Settings(threads=1, time_budget_seconds=look_seconds)
    session = Session(run_id=f"run-{name}", about=ABOUT, settings=settings, host=CPU, source=SOURCE)
    return Scope(Side(name=name), "cpu", session, cases, {key: Unsupported(reasons=["no"]) for key in unsupported})


@dataclass
class Table:
    """Where seats sit, and all that happened there."""

    log: list = field(default_factory=list)
    living: set = field(default_factory=set)
    replies: dict = field(default_factory=dict)

    def seat(self, scope, *, memory_bytes=None):
        return FakeSeat(self, scope)


@dataclass(eq=False)
class FakeSeat:
    table: Table
    scope: Scope
    cores: object = None
    case: object = None

    def __enter__(self):
        self.table.living.add(self)
        return self

    def __exit__(self, *_):
        self.table.living.discard(self)

    def settle(self, variant):
        self.say("settle", (len(self.table.living), self.cores))

    def check(self, case):
        self.say("check", case.key())
        return self.table.replies.pop(("check", self.scope.side.name), measured(peak_mib=3.0))

    def open(self, case):
        self.case = case.key()
        return self.reply("open", Block(seconds=9.0))

    def turn(self):
        return self.reply("turn", Block(seconds=0.001))

    def close(self):
        return self.reply("close", measured([], peak_mib=None, timer="in turns"))

    def reply(self, what, usual):
        self.say(what, self.case)
        told = self.table.replies.get((what, self.scope.side.name), [])
        return told.pop(0) if told else usual

    def say(self, what, about):
        self.table.log.append((what, self.scope.side.name, about))


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr("bench.ab.rounds.pinning.idlest", lambda threads: [0])
    return Table()


def rounds(table, *scopes, seed=0):
    clock = itertools.count()
    return Rounds(scopes, random.Random(seed), seat=table.seat, now=lambda: 0.01 * next(clock))  # noqa: S311  # no secret


def told(table, *what):
    return [entry for entry in table.log if entry[0] in what]


def two(table, keys=tuple(CASES), **changes):
    several = rounds(table, scope("base"), scope("head"), **changes)
    return {(visit.scope.side.name, visit.case.key()): visit.outcome for visit in several.visits(keys)}


ONE = tuple(CASES)[:1]

# --- order ----------------------------------------------------------------------------------------------------


def test_all_processes_have_loaded_on_the_same_cores_before_any_works(table):
    two(table)
    assert table.log[:2] == [("settle", "base", (2, [0])), ("settle", "head", (2, [0]))]
    assert not table.living


def test_cells_come_one_after_the_other_in_random_order(table):
    several = rounds(table, scope("base"), scope("head"))
    orders = set()
    for _ in range(20):
        table.log.clear()
        list(several.visits(CASES))
        keys = [key for _, _, key in told(table, "open", "turn", "close")]
        order = tuple(key for key, _ in itertools.groupby(keys))
        assert sorted(order) == sorted(CASES)
        orders.add(order)
    assert len(orders) > 15


def test_sides_take_turns_and_either_may_be_first(table):
    two(table)
    sides = [side for _, side, _ in told(table, "turn")]
    rows = list(zip(sides[::2], sides[1::2], strict=True))
    assert {frozenset(row) for row in rows} == {frozenset(("base", "head"))}
    assert 0.25 < sum(row[0] == "base" for row in rows) / len(rows) < 0.75


def test_a_case_is_checked_once_a_side(table):
    several = rounds(table, scope("base"), scope("head"))
    list(several.visits(ONE))
    assert sorted(side for _, side, _ in told(table, "check")) == ["base", "head"]
    table.log.clear()
    list(several.visits(ONE))
    assert told(table, "check") == []


def test_what_a_side_lacks_or_cannot_do_is_not_asked_of_it(table):
    keys = list(CASES)
    fewer = {key: CASES[key] for key in keys[:3]}
    several = rounds(table, scope("base", fewer), scope("head", unsupported=keys[:1]))
    visited = {(visit.scope.side.name, keys.index(visit.case.key())) for visit in several.visits(keys[:4])}
    assert visited == {("base", 0), ("base", 1), ("base", 2), ("head", 1), ("head", 2), ("head", 3)}


def test_no_process_starts_for_nothing(table):
    assert two(table, []) == {}
    assert table.log == []


# --- outcomes -------------------------------------------------------------------------------------------------


def test_the_figures_of_the_check_get_the_times_of_the_turns(table):
    outcomes = two(table, ONE)
    for outcome in outcomes.values():
        assert outcome.peak_bytes == 3 << 20
        assert set(outcome.seconds) == {0.001}  # without the 9 s of the warm-up
        assert len(outcome.seconds) >= FEWEST_ROWS
        assert outcome.timer == "in turns"


def test_rows_last_as_long_as_was_asked_for(table):
    several = rounds(table, scope("base", look_seconds=0.4), scope("head"))
    (visit, _) = several.visits(ONE)
    assert len(visit.outcome.seconds) == pytest.approx(2 * 0.4 / 0.01, abs=FEWEST_ROWS)  # two sides, a look a row


@pytest.mark.parametrize(("call_seconds", "expected"), [(0.01, 20), (0.02, 16), (0.05, 12), (0.5, 5)])
def test_long_calls_get_more_time_for_enough_rows_within_limits(call_seconds, expected):
    clock = turns.Clock(0.2, None)
    rows = itertools.takewhile(lambda rows: clock._goes_on(rows, 2, 2 * call_seconds * rows), itertools.count())
    assert len(list(rows)) == expected


def test_a_row_that_was_disturbed_on_one_side_is_dropped_on_both(table):
    table.replies["turn", "base"] = [Block(seconds=0.002, blemish="another process")]
    table.replies["turn", "head"] = [Block(seconds=0.003)]
    for outcome in two(table, ONE).values():
        assert set(outcome.seconds) == {0.001}
        assert outcome.dropped_share > 0


def test_where_most_rows_are_disturbed_all_stay(table):
    table.replies["turn", "base"] = [Block(seconds=0.002, blemish="another process")] * 1000
    outcomes = two(table, ONE)
    assert set(outcomes["base", ONE[0]].seconds) == {0.002}
    assert outcomes["base", ONE[0]].dropped_share == 0


def test_what_the_check_rejects_is_not_timed_and_the_other_side_is(table):
    table.replies["check", "head"] = Incorrect(stage="check", message="off")
    outcomes = two(table, ONE)
    assert outcomes["head", ONE[0]] == Incorrect(stage="check", message="off")
    assert outcomes["base", ONE[0]].seconds
    assert {side for _, side, _ in told(table, "turn")} == {"base"}


def test_a_process_that_dies_in_its_turn_gets_a_second_chance(table):
    dead = Crashed(stage="time", message="dead")
    table.replies["turn", "head"] = [Block(seconds=0.001), dead]
    outcomes = two(table, ONE)
    assert len(outcomes["base", ONE[0]].seconds) == len(outcomes["head", ONE[0]].seconds) >= FEWEST_ROWS
    assert any("a first try ended in stage time: dead" in note for note in outcomes["head", ONE[0]].notes)


def test_one_that_dies_twice_has_crashed_and_the_other_is_measured(table):
    dead = Crashed(stage="build", message="dead")
    table.replies["open", "head"] = [dead, dead]
    outcomes = two(table, ONE)
    assert outcomes["head", ONE[0]] == dead
    assert len(outcomes["base", ONE[0]].seconds) >= FEWEST_ROWS


def test_what_fails_is_not_tried_again(table):
    table.replies["open", "head"] = [Failed(stage="build", message="no")]
    assert two(table, ONE)["head", ONE[0]] == Failed(stage="build", message="no")
    assert len(told(table, "open")) == 2
