"""The arithmetic of the tables about accuracy; what they measure is measured by hand."""

from __future__ import annotations

import pytest

from tests.perf import repeats, timers, weighing


def test_runs_are_compared_by_the_cases_that_both_have():
    first = {"a": 1.0, "b": 2.0, "c": 0.0001, "gone": 1.0}
    second = {"a": 1.01, "b": 2.24, "c": 0.000094, "new": 1.0}
    lines = repeats.table(first, second).splitlines()
    assert lines[2] == "| all | 3 | 1.010 | 6.0% | 2 | 2 | 1 | 1.12 |"
    assert lines[3] == "| under 1 ms | 1 | 0.940 | 6.0% | 1 | 1 | 0 | 0.94 |"
    assert lines[4] == "| over 1 ms | 2 | 1.065 | 6.5% | 1 | 1 | 1 | 1.12 |"
    assert lines[-1] == "Measured in one of them alone: 2."


def test_a_trace_is_within_one_percent_from_the_sample_on_that_makes_it_so():
    wild, calm = [1.0, 1.2, 0.9, 1.1], [1.0] * 20
    seconds = [*wild, *calm]
    trace = timers.Trace(seconds, [0.1 * (index + 1) for index in range(len(seconds))], 1.0)
    count = trace.to_interval(0.01)
    assert count is not None
    assert timers.half_width(seconds[:count]) <= 0.01 < timers.half_width(seconds[: count - 1])
    assert timers.Trace(wild * 2, [0.0] * 8, 1.0).to_interval(0.01) is None


def test_what_is_no_call_came_before_the_calls():
    trace = timers._reconstructed([0.1, 0.2], calls=10, spent=3.5, reading=0.15)
    assert list(trace.known_at) == pytest.approx([0.5 + 1, 0.5 + 3])


def test_memory_is_what_can_be_counted_by_hand():
    for row in weighing.table().splitlines()[2:]:
        assert row.endswith("| 1.0000 |"), row
