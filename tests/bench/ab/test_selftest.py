"""The self-test on made-up recordings, of which it is known what must come out."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec
import pytest

from bench.ab import recording, rivals, selftest_tables
from bench.ab.recording import ALIKE, Recording
from bench.ab.selftest import Rate, SelfTest
from bench.errors import NotComparableError, WrongUsageError
from bench.gate.policy import DEFAULT
from bench.record import encode
from bench.sweep.suite import Suite
from tests.bench.ab.recordings import CASES, recorded
from tests.bench.ab.test_rounds import Table, scope


def judged(records, **changes):
    return SelfTest(Recording(records), DEFAULT, **{"screening": 12, "confirming": 24, "suites": 40, **changes})


@pytest.fixture(scope="module")
def quiet():
    return judged(recorded())


ROUND_SECONDS = 9.0  # of a made-up round, about

# --- rates ----------------------------------------------------------------------------------------------------


def test_the_bound_is_the_rule_of_three_and_one_where_all_hit():
    assert Rate(0, 300).upper == pytest.approx(1 - 0.05 ** (1 / 300))
    assert Rate(0, 300).upper < 0.01
    assert Rate(3, 100).upper == pytest.approx(0.0757, abs=1e-4)  # Clopper and Pearson
    assert Rate(5, 5).upper == 1.0


# --- drawing --------------------------------------------------------------------------------------------------


def test_no_process_is_in_a_suite_twice(quiet):
    for screening, confirming, _ in quiet._draws("alike", "alike"):
        assert len({*screening, *confirming}) == 36
    rounds = [number for first, second, _ in quiet._disjoint() for number in (*first, *second)]
    assert len(rounds) == len(set(rounds)) == 36


def test_suites_differ_and_half_of_them_are_exchanged(quiet):
    draws = list(quiet._draws("alike", "alike"))
    assert len({tuple(screening) for screening, *_ in draws}) == len(draws)
    assert sum(exchanged for *_, exchanged in draws) == len(draws) / 2
    assert draws == list(quiet._draws("alike", "alike"))


def test_a_side_that_is_always_favoured_is_an_alarm():
    def favoured(record):
        if record.run_id.endswith(ALIKE) and record.case.variant == "sdpa_flash":
            slower = [seconds * 1.04 for seconds in record.outcome.seconds]
            return msgspec.structs.replace(record, outcome=msgspec.structs.replace(record.outcome, seconds=slower))
        return record

    told = judged([favoured(record) for record in recorded(40)], suites=8).alike()
    assert told.suites.hits == 4  # the other half is exchanged, and faster
    assert told.faster.hits > 0


# --- figures --------------------------------------------------------------------------------------------------


def test_identical_code_raises_no_alarm_and_is_the_same(quiet):
    told = quiet.alike()
    assert told.suites == Rate(0, 40)
    assert told.cells.trials == 40 * len(CASES)
    assert told.inconclusive.value < 0.05
    assert quiet.real().suites.trials == 1


def test_slow_downs_are_found_and_their_real_size_is_told(quiet):
    powers = quiet.power()
    assert {one.side for one in powers} == set(recording.SHARES)
    assert len({one.key for one in powers}) == 8  # two variants, two lengths, two modes
    bands = {one.side: one.band for one in powers}
    assert bands == {"slower_1": None, "slower_3": "3%", "slower_5": "5%", "slower_10": "10%"}
    for one in powers:
        assert one.error == pytest.approx(0.004 / 24**0.5, rel=0.5)
        assert one.effect.value == pytest.approx(recording.SHARES[one.side], abs=0.004)
        if one.side == "slower_1":
            assert one.found.value < 0.5  # hardly more than the margin
        else:
            assert one.found.value > (0.8 if one.side == "slower_3" else 0.99)


def test_slow_downs_of_some_cells_alone_are_found_there(quiet):
    for told in quiet.specials().values():
        assert told.found.value == 1.0
        assert told.cells.value > 0.99
        assert told.elsewhere.value == 0.0
    assert quiet.heavier() == Rate(8, 8)


def test_other_rules_are_fed_the_same_samples(quiet):
    told = {contest.rival.name: contest for contest in quiet.contests()}
    stored = told["median > 5%, stored baseline"]
    interleaved = told["median > 5%, interleaved"]
    assert stored.cells.value > 0.03  # the machine drifts by 5% from round to round
    assert interleaved.cells.value == 0.0
    assert interleaved.found["10%"].value == 1.0
    assert 0.2 < interleaved.found["5%"].value < 0.8
    assert interleaved.found["3%"].value == 0.0


def test_every_figure_is_in_a_table(quiet):
    found = selftest_tables.tables(quiet)
    text = selftest_tables.as_markdown(found)
    assert [len(table.rows) > 0 for table in found] == [True] * 5
    assert all(len(row) == len(table.columns) for table in found for row in table.rows)
    assert "0 of 40" in text
    assert "18 cells, 12 pairs for screening and 24 fresh ones for suspects, from 60 rounds; a pair takes 15 s" in text
    assert "10% only in bwd" in text


def test_without_slow_downs_there_is_still_a_table():
    alone = [record for record in recorded(40) if recording.group_of(record) == "alike"]
    found = selftest_tables.tables(judged(alone, suites=3))
    assert [len(table.rows) > 0 for table in found] == [True, False, False, True, False]


def test_too_few_rounds_or_pairs_are_refused():
    with pytest.raises(NotComparableError, match=r"expected 36 complete rounds .* got 20"):
        judged(recorded(20)).check()
    with pytest.raises(WrongUsageError, match="cannot show"):
        judged(recorded(20), screening=4, confirming=5).check()


# --- reading --------------------------------------------------------------------------------------------------


def test_a_round_that_was_cut_short_does_not_count():
    records = recorded(6)
    last = max(record.process for record in records if recording.group_of(record) == "alike")
    cut = [record for record in records if record.process != last] + [
        next(record for record in records if record.process == last)
    ]
    assert len(Recording(cut).rounds("alike")) == 5


def test_files_of_one_machine_are_one_recording(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        lines = [encode(record) + b"\n" for record in recorded(4, seed=seed)]
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(lines))
    both = recording.load([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert len(both.rounds("alike")) == 8
    assert set(recording.noise(both)) == {case.key() for case in CASES}


def test_files_of_two_machines_are_refused(tmp_path):
    for name in ("a", "b"):
        changed = [
            msgspec.structs.replace(record, host=msgspec.structs.replace(record.host, fingerprint=name))
            for record in recorded(2)
        ]
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in changed))
    with pytest.raises(NotComparableError, match="one machine"):
        recording.load([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])


# --- rules of others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("head", "slower"), [(1.04, False), (1.06, True), (0.5, False)])
def test_a_threshold_is_crossed_upwards_only(head, slower):
    rule = rivals.threshold(min, 0.05)
    assert rule([[1.0, 9.0]], [[head, 9.0]]) == slower


def test_asv_wants_a_tenth_and_samples_that_differ():
    few, many = [1.0, 1.1], [1.0 + number / 1000 for number in range(20)]
    assert not rivals.asv([few], [[1.3 * seconds for seconds in few]])
    assert not rivals.asv([many], [[1.05 * seconds for seconds in many]])
    assert rivals.asv([many], [[1.2 * seconds for seconds in many]])


# --- recording ------------------------------------------------------------------------------------------------


@pytest.fixture
def recorder(monkeypatch, tmp_path):
    """Makes recorders without processes, in whose time a look at the clock takes a while."""
    clock = itertools.count()
    table = Table()
    monkeypatch.setattr("bench.ab.rounds.pinning.idlest", lambda threads: None)
    base = scope("base", {case.key(): case for case in CASES if case.variant == "naive_sdpa"})

    def explored(sides, suite, *, run_id, **_):
        session = msgspec.structs.replace(base.session, run_id=f"{run_id}-base")
        return [dataclasses.replace(base, session=session)]

    def make(seconds, **changes):
        return recording.Recorder(
            suite=Suite(time_budget=0.1), file=tmp_path / "r.jsonl", seconds=seconds, now=lambda: 0.25 * next(clock),
            explore=explored, seat=table.seat, **changes,
        )  # fmt: skip

    return make


def test_a_recording_whose_file_is_removed_says_so_and_loses_nothing(recorder, tmp_path):
    said = []

    def say(line):
        said.append(line)
        if line.startswith("round 3"):
            (tmp_path / "r.jsonl").unlink()

    recorder(seconds=20 * ROUND_SECONDS, say=say).record()
    assert f"{tmp_path / 'r.jsonl'} was removed or moved away; what was measured so far is written there again" in said
    assert recording.load([tmp_path / "r.jsonl"]).rounds("alike")[:2] == [1, 2]


def test_a_recording_ends_in_time_and_goes_on_where_it_was(recorder, tmp_path):
    recorder(seconds=20 * ROUND_SECONDS).record()
    first = recording.load([tmp_path / "r.jsonl"])
    assert first.rounds("heavier") == [0]
    assert first.rounds("alike")[:2] == [1, 2]
    assert first.rounds("burdened")[:1] == [3]
    last = max(record.process for record in first.records)
    recorder(seconds=20 * ROUND_SECONDS, resume=True).record()
    second = recording.load([tmp_path / "r.jsonl"])
    assert second.rounds("heavier") == [0, last + 1]
    assert set(first.rounds("alike")) < set(second.rounds("alike"))
    assert {record.run_id.rpartition("-")[0] for record in second.records} == {
        first.records[0].run_id.rpartition("-")[0]
    }


def test_a_recording_is_not_overwritten(recorder):
    recorder(seconds=5 * ROUND_SECONDS).record()
    with pytest.raises(WrongUsageError, match="--resume"):
        recorder(seconds=5 * ROUND_SECONDS).record()
