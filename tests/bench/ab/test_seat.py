"""Taking turns through real processes, with made-up times."""

from __future__ import annotations

import dataclasses

import pytest

from bench.ab.scope import Scope
from bench.ab.seat import Seat
from bench.ab.sides import Side
from bench.errors import WrongUsageError
from bench.record import Case, Crashed, Measured
from bench.sweep import messages
from bench.sweep.messages import Block
from tests.bench.ab.test_rounds import scope
from variants._contract import Workload

MINE = """
import os
from dataclasses import replace
from tests.fixtures.sound import variant

def fault():
    os._exit(3)

VARIANT = replace(variant("mine", fault), summary="1000")
"""


def case(length):
    return Case(variant="mine", workload=Workload(query_length=length))


@pytest.fixture
def seat(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    side = Side(name="base", engine="tests.fixtures.paced_engine", files={"mine": str(tmp_path / "mine.py")})
    known: Scope = dataclasses.replace(scope("base"), side=side)
    with Seat(known) as taken:
        taken.settle("mine")
        yield taken


def test_every_turn_is_a_block_until_the_last(seat):
    blocks = [seat.open(case(8)), seat.turn(), seat.turn()]
    assert all(isinstance(block, Block) for block in blocks)
    assert [block.seconds for block in blocks] == pytest.approx([0.001] * 3, rel=0.02)
    outcome = seat.close()
    assert isinstance(outcome, Measured)
    assert (outcome.seconds, outcome.own_error, outcome.timer) == ([], None, "paced")


def test_a_check_between_turns_of_other_cases(seat):
    assert seat.check(case(8)).peak_bytes == 1024
    assert isinstance(seat.open(case(16)), Block)
    assert isinstance(seat.close(), Measured)


def test_who_dies_is_replaced_for_the_next_case(seat):
    lost = seat.open(case(13))
    assert isinstance(lost, Crashed)
    assert "exit code 3" in lost.message
    assert isinstance(seat.open(case(8)), Block)
    assert isinstance(seat.close(), Measured)


def test_nobody_has_a_turn_without_a_case(seat):
    with pytest.raises(WrongUsageError, match="while a case is measured"):
        seat._ask(messages.Turn(), 10.0)
