from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from bench import record, store
from bench.errors import NotComparableError, WrongUsageError
from bench.record import About, Case, Failed, Host, Measured, Record, Settings, Source
from variants._contract import Workload

MEASURED = Measured(
    seconds=[0.5, 0.25],
    timer="fake",
    peak_bytes=1,
    setup_seconds=0.5,
    own_error=0.0,
    tolerance=1.0,
    useful_flops=1,
    issued_flops=1,
)


def line_of(*, length=8, process=0, run_id="r", outcome=MEASURED):
    return Record(
        run_id=run_id,
        case=Case(variant="naive_sdpa", workload=Workload(query_length=length, key_length=length)),
        outcome=outcome,
        process=process,
        about=About(family="exact", exact=True),
        settings=Settings(threads=1),
        host=Host(fingerprint="f", device_name="d"),
        source=Source(git=None, dirty=None),
    )


def write(path, *lines):
    path.write_bytes(b"".join(line if isinstance(line, bytes) else record.encode(line) + b"\n" for line in lines))
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


# --- reading --------------------------------------------------------------------------------------------------


def test_what_is_appended_is_read_back(file):
    lines = [line_of(length=8), line_of(length=16, outcome=Failed(stage="build", message="ValueError: no"))]
    with store.Appender(file) as appender:
        for line in lines:
            appender.append(line)
    assert store.read(file) == store.Reading(lines, [], {})


def test_a_damaged_line_costs_that_line_and_is_named(file):
    write(file, line_of(), b'{"schema": 1, "run_id": \n', line_of(length=16), b"\xff\xfe\n", b"[1]\n")
    reading = store.read(file)
    assert [one.case.workload.query_length for one in reading.records] == [8, 16]
    assert [problem.split(":")[0] for problem in reading.problems] == [f"{file} line {n}" for n in (2, 4, 5)]


def test_a_cut_last_line_costs_that_line(file):
    write(file, line_of(), record.encode(line_of(length=16))[:-9])
    reading = store.read(file)
    assert len(reading.records) == 1
    assert "line 2: cut short" in reading.problems[0]


def test_a_last_line_that_lacks_only_its_end_counts(file):
    write(file, line_of(), record.encode(line_of(length=16)))
    assert len(store.read(file).records) == 2


@pytest.mark.parametrize(
    ("path", "value"),
    [("outcome", {"status": "mesured"}), ("case", {"variant": "x"}), ("host", {}), ("process", "0")],
)
def test_a_line_with_a_wrong_part_is_damaged(file, path, value):
    built = msgspec.to_builtins(line_of()) | {path: value}
    write(file, line_of(), json.dumps(built).encode() + b"\n")
    assert len(store.read(file).problems) == 1


@pytest.mark.parametrize("compactly", [False, True])
@pytest.mark.parametrize(
    "impossible",
    [
        {"peak_bytes": -5},
        {"seconds": [0.5, 0.0]},
        {"seconds": [-0.5]},
        {"seconds_warm": [0.0]},
        {"issued_flops": -1},
        {"peak_bytes": 2**63},
        {"saved_bytes": 2**63},
        {"issued_flops": 10**30},
        {"seconds": [1e300]},
        {"seconds": [1e-300]},
        {"seconds_graph": [1e300]},
    ],
)
def test_a_time_or_a_size_that_cannot_be_is_damaged(file, impossible, compactly):
    outcome = msgspec.structs.replace(MEASURED, **impossible)
    write(file, line_of(), line_of(length=16, outcome=outcome), line_of(length=32))
    reading = store.read(file, compactly=compactly)
    assert [one.case.workload.query_length for one in reading.records] == [8, 32]
    (problem,) = reading.problems
    assert "line 2: not a record" in problem
    assert next(iter(impossible)) in problem
    assert record.storable(line_of(outcome=outcome)).status == "failed"


def test_an_impossible_workload_is_damaged(file):
    text = record.encode(line_of(length=16)).replace(b'"heads":8,"kv_heads":8', b'"heads":8,"kv_heads":3')
    write(file, line_of(), text + b"\n")
    assert "multiple of kv_heads" in store.read(file).problems[0]


def test_unknown_kinds_are_counted_and_skipped(file):
    changes = {"case": {"kind": "module", "layer": 3}, "outcome": {"status": "trained"}}
    built = json.loads(record.encode(line_of())) | changes
    write(file, line_of(), json.dumps(built).encode() + b"\n", json.dumps(built).encode() + b"\n")
    reading = store.read(file)
    assert reading.skipped == {"module": 2}
    assert not reading.problems


def test_a_newer_schema_is_refused_with_the_remedy(file):
    write(file, line_of(), b'{"schema": 99, "all": "different"}\n')
    with pytest.raises(NotComparableError, match=r"line 2 has schema 99.*reads up to 1: upgrade attention-bench"):
        store.read(file)


def test_an_older_schema_is_upgraded(file, monkeypatch):
    def upgrade(built):
        return {**built, "run_id": built["run"]}

    old = json.loads(record.encode(line_of())) | {"schema": 0, "run": "old"}
    del old["run_id"]
    write(file, json.dumps(old).encode())
    monkeypatch.setattr(store, "upgrade", upgrade)
    (read,) = store.read(file).records
    assert (read.run_id, read.schema) == ("old", record.SCHEMA)


def test_a_setting_that_no_longer_is_one_is_passed_over(file):
    """Lines of 0.1 had a setting `timer`, which was always null."""
    old = json.loads(record.encode(line_of()))
    old["settings"]["timer"] = None
    write(file, json.dumps(old).encode())
    assert store.read(file).records == [line_of()]


def test_the_last_line_of_a_case_counts_at_the_place_of_the_first(file):
    failed = Failed(stage="build", message="no")
    write(file, line_of(outcome=failed), line_of(length=16), line_of(), line_of(process=1), line_of(run_id="s"))
    read = store.read(file).records
    assert [(one.run_id, one.case.workload.query_length, one.process, one.status) for one in read] == [
        ("r", 8, 0, "measured"),
        ("r", 16, 0, "measured"),
        ("r", 8, 1, "measured"),
        ("s", 8, 0, "measured"),
    ]


def test_several_files_read_as_one(tmp_path):
    one = write(tmp_path / "a.jsonl", line_of(), b"?\n")
    two = write(tmp_path / "b.jsonl", line_of(length=16), line_of())
    reading = store.read(one, two)
    assert len(reading.records) == 2
    assert reading.problems[0].startswith(f"{one} line 2")


def test_a_missing_file_is_wrong_usage(file):
    with pytest.raises(WrongUsageError, match=r"cannot read .*No such file"):
        store.read(file)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", ", but nothing was written yet;"), (b"?\n", "found 1 unreadable line,"), (b"\n\n", "nothing")],
)
def test_a_file_without_records_says_why(file, content, why):
    write(file, content)
    with pytest.raises(NotComparableError, match=why):
        store.read(file)


def test_many_lines_share_what_repeats(file):
    write(file, *[line_of(process=process) for process in range(2000)])
    tracemalloc.start()
    read = store.read(file).records
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len({id(one.host) for one in read}) == len({id(one.case) for one in read}) == 1
    assert held / len(read) < 1500  # a million of them fit where one is 1.4 kB of text


# --- writing --------------------------------------------------------------------------------------------------


def test_parents_are_created(tmp_path):
    with store.Appender(tmp_path / "a/b/run.jsonl") as appender:
        appender.append(line_of())
    assert len(store.read(tmp_path / "a/b/run.jsonl").records) == 1


def test_an_existing_file_is_not_overwritten(file):
    write(file, line_of())
    with pytest.raises(WrongUsageError, match="exists: continue it with --resume"), store.Appender(file):
        pass
    assert len(store.read(file).records) == 1


@pytest.mark.parametrize("whole", [0, 1, 2000])
@pytest.mark.parametrize("cut", [b"{", b'{"schema":1,"ru', record.encode(line_of())[:-1]])
def test_resuming_ends_a_last_line_that_was_cut_and_reads_the_rest(file, whole, cut):
    write(file, *[line_of()] * whole, cut)
    before = file.read_bytes()
    with store.Appender(file, resume=True) as appender:
        assert len(appender.reading.records) == bool(whole)
        (problem,) = appender.reading.problems
        assert f"line {whole + 1}: cut short" in problem
        appender.append(line_of(length=16))
    assert file.read_bytes() == before + b"\n" + record.encode(line_of(length=16)) + b"\n"


def test_resuming_keeps_a_last_line_that_is_damaged_and_was_not_cut(file):
    write(file, line_of(), b"[1]")
    with store.Appender(file, resume=True) as appender:
        appender.append(line_of(length=16))
    assert b"\n[1]\n" in file.read_bytes()
    assert len(store.read(file).records) == 2


def test_resuming_ends_a_last_line_that_lacks_only_its_end(file):
    write(file, line_of(), record.encode(line_of(length=16)))
    with store.Appender(file, resume=True) as appender:
        assert not appender.reading.problems
    assert file.read_bytes() == write(file, line_of(), line_of(length=16)).read_bytes()


@pytest.mark.parametrize(
    "text", [b"important notes\nmore\n", b"mine", b"[1]\n", b"\n\n", b"\x00\xff", b'mine\n{"schema":1,"ru']
)
def test_resuming_leaves_a_file_without_records_alone(file, text):
    file.write_bytes(text)
    with pytest.raises(WrongUsageError, match=r"no line of .*run.jsonl is a record; give another --out"):
        store.Appender(file, resume=True).__enter__()
    assert file.read_bytes() == text


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_is_no_file(tmp_path, resume):
    with pytest.raises(WrongUsageError, match=r"expected a file such as run.jsonl, but .* is a folder"):
        store.Appender(tmp_path, resume=resume).__enter__()


def test_resuming_what_is_not_there_begins_it(file):
    with store.Appender(file, resume=True) as appender:
        assert appender.reading == store.Reading([], [], {})
        appender.append(line_of())
    assert len(store.read(file).records) == 1


def test_two_runs_on_one_file(file):
    with store.Appender(file) as first:
        first.append(line_of())
        with pytest.raises(WrongUsageError, match="is being written by another run"), store.Appender(file, resume=True):
            pass
        first.append(line_of(length=16))
    assert len(store.read(file).records) == 2


def test_a_refused_file_is_unlocked(file):
    write(file, line_of())
    with pytest.raises(WrongUsageError, match="exists"):
        store.Appender(file).__enter__()
    with store.Appender(file, resume=True) as appender:
        appender.append(line_of(length=16))


def test_the_lock_of_a_killed_run_is_gone(file):
    code = f"""
import os, signal, pathlib
from bench import store
with store.Appender(pathlib.Path({str(file)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode < 0
    with store.Appender(file, resume=True) as appender:
        appender.append(line_of())
    assert len(store.read(file).records) == 1


def test_every_record_is_synced(file, monkeypatch):
    synced = []
    with store.Appender(file) as appender:
        monkeypatch.setattr(os, "fsync", lambda _: synced.append(file.read_bytes().count(b"\n")))
        appender.append(line_of())
        appender.append(line_of(length=16))
    assert synced == [1, 2]


def test_a_full_disk_keeps_the_file_whole(file, monkeypatch):
    real = os.write
    with store.Appender(file) as appender:
        appender.append(line_of())

        def full(handle, data):
            if len(data) < 100:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(handle, data[:-50])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(store.WriteError, match=r"No space left on device.*--resume"):
            appender.append(line_of(length=16))
        monkeypatch.undo()
        appender.append(line_of(length=32))
    reading = store.read(file)
    assert [one.case.workload.query_length for one in reading.records] == [8, 32]
    assert not reading.problems


def removed(file):
    file.unlink()


def moved_away(file):
    file.rename(file.with_name("elsewhere.jsonl"))


def removed_with_its_folder(file):
    shutil.rmtree(file.parent)


@pytest.mark.parametrize("lose", [removed, moved_away, removed_with_its_folder])
@pytest.mark.parametrize("more", [0, 2])
def test_a_file_that_somebody_removes_is_there_again(tmp_path, lose, more):
    """With the next record, or where none is to come, at the end."""
    file, told = tmp_path / "runs/run.jsonl", []
    with store.Appender(file, told=told.append) as appender:
        for length in range(1, 4):
            appender.append(line_of(length=length))
        lose(file)
        for length in range(4, 4 + more):
            appender.append(line_of(length=length))
            assert len(store.read(file).records) == length
    assert [one.case.workload.query_length for one in store.read(file).records] == [*range(1, 4 + more)]
    assert told == [f"{file} was removed or moved away; what was measured so far is written there again"]
    with store.Appender(file, resume=True) as appender:
        appender.append(line_of(length=9))


def test_a_file_behind_a_link_is_there_again_too(tmp_path):
    link, file = tmp_path / "link.jsonl", tmp_path / "run.jsonl"
    link.symlink_to(file)
    with store.Appender(link) as appender:
        appender.append(line_of())
        file.unlink()
        appender.append(line_of(length=16))
    assert link.is_symlink()
    assert len(store.read(file).records) == 2


def test_a_file_in_its_place_is_left_alone_and_nothing_is_lost(file):
    with store.Appender(file) as appender:
        appender.append(line_of())
        file.unlink()
        file.write_text("mine")
        with pytest.raises(store.WriteError, match="was replaced by another file, which is left alone") as raised:
            appender.append(line_of(length=16))
    assert file.read_text() == "mine"
    (beside,) = file.parent.glob("run.*.jsonl")
    assert f"is in {beside}: go on with it" in str(raised.value)
    assert len(store.read(beside).records) == 2


def test_an_empty_file_in_its_place_is_left_alone(file):
    with store.Appender(file):
        file.unlink()
        file.write_text("mine")
    assert file.read_text() == "mine"


def test_a_removed_file_that_cannot_be_written_again_is_told(tmp_path):
    folder = tmp_path / "runs"
    appender = store.Appender(folder / "run.jsonl").__enter__()
    appender.append(line_of())
    shutil.rmtree(folder)
    folder.write_text("mine")
    for end in (lambda: appender.append(line_of(length=16)), appender.__exit__):
        with pytest.raises(store.WriteError, match=r"removed or replaced, and .* cannot be written to .*: "):
            end()


def test_a_file_that_may_not_grow_keeps_what_fits(file):
    code = f"""
import pathlib, resource
from bench import store
path = pathlib.Path({str(file)!r})
(line,) = store.read(path.with_name("one.jsonl")).records
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
with store.Appender(path) as appender:
    for _ in range(9):
        appender.append(line)
"""
    write(file.with_name("one.jsonl"), line_of())
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "WriteError: cannot write" in done.stderr
    assert b"\n" in file.read_bytes()
    assert not store.read(file).problems


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_wrong_usage(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(WrongUsageError, match="cannot write"), store.Appender(tmp_path / "run.jsonl"):
            pass
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_a_folder_that_cannot_be_made_is_wrong_usage(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(WrongUsageError, match=r"cannot write .*; give another --out"):
        store.Appender(tmp_path / "taken/run.jsonl").__enter__()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc")
def test_a_place_that_takes_no_file_is_not_another_run():
    """There, making a file fails as if its folder were missing."""
    with pytest.raises(WrongUsageError, match=r"cannot write /proc/x.jsonl: No such file or directory; give another"):
        store.Appender(Path("/proc/x.jsonl")).__enter__()


def test_a_number_that_is_not_finite_is_refused(file):
    outcome = msgspec.structs.replace(MEASURED, own_error=float("nan"))
    with store.Appender(file) as appender, pytest.raises(ValueError, match="own_error is nan"):
        appender.append(line_of(outcome=outcome))
    assert not file.exists()  # nothing came of it, and nothing stands in the way of the next try


# --- repeated lines -------------------------------------------------------------------------------------------


def rewritten(line, **changes):
    return json.dumps(json.loads(record.encode(line)) | changes).encode() + b"\n"


ODD_NAMES = ['a"]b', "kernel<x[3]>", '","process":7,"about":{', "", "ünï", "\\"]


def test_lines_that_repeat_read_as_the_first_does(file):
    lines = [
        line_of(process=process, outcome=outcome)
        for process in range(3)
        for outcome in (
            msgspec.structs.replace(
                MEASURED, dispatched=["aten::bmm", *ODD_NAMES[:process]], notes=['x","at":"never"}']
            ),
        )
    ]
    lines += [line_of(process=9, outcome=Failed(stage="build", message='"],"process":1,"about":{}'))]
    lines += [msgspec.structs.replace(line_of(process=10), at="2024-03-01T12:00:00+00:00", command='echo ,"at":"no"}')]
    write(file, *lines)
    assert store.read(file).records == lines


def test_lines_of_another_order_are_read_too(file):
    some = [line_of(process=process) for process in range(3)]
    backwards = [json.dumps(dict(reversed(json.loads(record.encode(one)).items()))).encode() + b"\n" for one in some]
    write(file, some[0], *backwards[1:], rewritten(line_of(process=3)))
    assert store.read(file).records == [*some, line_of(process=3)]


@pytest.mark.parametrize("names", [[name] for name in ODD_NAMES] + [ODD_NAMES, []], ids=str)
def test_names_of_what_ran_survive_being_shared(file, names):
    lines = [
        line_of(process=process, outcome=msgspec.structs.replace(MEASURED, dispatched=names)) for process in (0, 1)
    ]
    write(file, *lines)
    read = store.read(file).records
    assert [one.outcome.dispatched for one in read] == [names, names]
    assert read[0].outcome.dispatched is read[1].outcome.dispatched
    assert read[0].outcome.timer is read[1].outcome.timer


def test_parts_may_hold_what_lines_are_split_at(file):
    names = {"x": 1.0, "process": 2.0, "about": 3.0, "at": 4.0, "outcome": 5.0}
    some = line_of()
    outcome = msgspec.structs.replace(MEASURED, conditions=names)
    host = msgspec.structs.replace(some.host, ceilings=names)
    changes = [{"outcome": outcome}, {"host": host}, {"case": msgspec.structs.replace(some.case, parameters=names)}]
    lines = [
        msgspec.structs.replace(some, process=3 * process + number, **change)
        for process in range(4)
        for number, change in enumerate(changes)
    ]
    write(file, *lines)
    assert store.read(file).records == lines


def test_a_damaged_outcome_or_process_among_repeated_lines_is_named(file):
    good = record.encode(line_of()) + b"\n"
    write(
        file, good, good.replace(b'"process":0', b'"process":"x"'), good.replace(b'"seconds":[0.5', b'"seconds":["5"')
    )
    reading = store.read(file)
    assert len(reading.records) == 1
    assert [problem.split(":")[0] for problem in reading.problems] == [f"{file} line 2", f"{file} line 3"]


def test_compactly_seconds_are_arrays_of_the_same_numbers(file):
    write(file, line_of(), line_of(process=1))
    (one, other) = store.read(file, compactly=True).records
    assert list(one.outcome.seconds) == list(other.outcome.seconds) == MEASURED.seconds
    assert one.outcome.seconds.itemsize == 8
