"""`gate selftest` on made-up recordings; what it records is tested beside the code that does."""

from __future__ import annotations

import pytest

from bench.ab.recording import group_of, side_of
from bench.record import encode
from tests.bench.ab.recordings import recorded

SMALL = ("--suites", "10", "--screening", "8", "--confirming", "14")


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    file = tmp_path_factory.mktemp("recording") / "r.jsonl"
    file.write_bytes(b"".join(encode(record) + b"\n" for record in recorded(24)))
    return file


def test_the_tables_come_from_a_recording_and_are_the_same_again(attnbench, recording, tmp_path):
    first = attnbench("gate", "selftest", "--from", recording, *SMALL, "--markdown", tmp_path / "t.md")
    assert first.code == 0, first.err
    assert "0 of 10" in first.out
    for words in ("Power", "Slow-downs in some cells alone", "pytest-benchmark", "asv"):
        assert words in first.out
    assert "| this gate |" in (tmp_path / "t.md").read_text()
    assert attnbench("gate", "selftest", "--from", recording, *SMALL).out == first.out


def test_false_alarms_are_exit_1(attnbench, tmp_path):
    records = recorded(24)
    for record in records:
        if side_of(record) == group_of(record) == "alike":
            record.outcome.seconds[:] = [1.05 * seconds for seconds in record.outcome.seconds]
    file = tmp_path / "r.jsonl"
    file.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    assert attnbench("gate", "selftest", "--from", file, *SMALL).code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--from", "absent.jsonl"), 2, "absent.jsonl"),
        ((), 2, "expected how long to record"),
        (("--hours", "1"), 2, "expected where to record"),
        (("--hours", "1", "--budget", "5", "--out", "x.jsonl"), 2, "expected how long to record"),
        (("--hours", "1", "--out", "x.jsonl", "--suite", "gat"), 2, "did you mean 'gate'"),
    ],
)
def test_wrong_usage_is_one_line(attnbench, arguments, code, said):
    ended = attnbench("gate", "selftest", *arguments)
    assert ended.code == code, ended
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_recording_that_is_too_short_is_not_comparable(attnbench, recording):
    ended = attnbench("gate", "selftest", "--from", recording)
    assert ended.code == 3
    assert "record longer" in ended.err
