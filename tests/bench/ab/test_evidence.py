"""Records of both sides become pairs; what identical code differs by is told by base alone, or by the pairs."""

from __future__ import annotations

import math
import random

import pytest

from bench.ab.evidence import own_noise, paired
from bench.record import Crashed
from tests.bench.runs import measured, record


def timed(seconds, process, stage="screening"):
    return record(outcome=measured([seconds] * 3, conditions={"stage": stage}), process=process)


def test_a_pair_is_one_number_and_stages_are_kept_apart():
    base = [timed(1.0, 0), timed(2.0, 1), timed(1.0, 2, "confirming"), timed(4.0, 3)]
    head = [timed(1.1, 0), timed(2.0, 1), timed(1.5, 2, "confirming")]
    (cell,) = paired(base, head)
    assert cell.screened == pytest.approx((math.log(1.1), 0.0))
    assert cell.confirmed == pytest.approx((math.log(1.5),))


def test_a_side_that_crashed_is_told():
    (cell,) = paired([timed(1.0, 0)], [record(outcome=Crashed(stage="build", message="dead"))])
    assert (cell.base.status, cell.head.status, cell.screened) == ("measured", "crashed", ())


def test_a_case_of_one_side_is_a_cell_too():
    (cell,) = paired([timed(1.0, 0)], [])
    assert (cell.base.status, cell.head.status) == ("measured", None)


def test_calibration_comes_before_the_noise_of_the_job():
    base, head = [timed(1.0, number) for number in range(4)], [timed(1.0, number) for number in range(4)]
    key = base[0].case.key()
    assert paired(base, head, {key: 0.07})[0].noise == 0.07
    assert paired(base, head)[0].noise == 0.0


def test_a_head_that_varies_excuses_nothing():
    draw = random.Random(3)  # noqa: S311  # no secret
    base = {number: math.exp(draw.gauss(0, 0.002)) for number in range(40)}
    wild = [draw.gauss(0, 0.1) for _ in range(40)]
    assert own_noise(base, wild) == pytest.approx(0.002 * 2**0.5, rel=0.4)


def test_a_machine_that_drifts_from_pair_to_pair_excuses_nothing_either():
    draw = random.Random(4)  # noqa: S311  # no secret
    base = {number: math.exp(draw.gauss(0, 0.2)) for number in range(40)}
    steady = [draw.gauss(0, 0.003) for _ in range(40)]
    assert own_noise(base, steady) == pytest.approx(0.003, rel=0.4)


def test_one_pair_tells_nothing_of_noise():
    assert own_noise({0: 1.0}, [0.0]) is None
