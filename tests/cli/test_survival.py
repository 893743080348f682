"""What ends a sweep itself: nothing measured is lost, `--resume` measures what is missing, and the message says so."""

from __future__ import annotations

import errno
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench import store

ROOT = Path(__file__).parents[2]

DRIVER = """
import sys
from bench.sweep import supervisor
supervisor.ENGINE = "tests.fixtures.fake_engine"
{before}
from bench.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def in_process_of_its_own(*arguments, before="", **environment):
    """A run whose process may be killed; ``before`` is code for it to begin with."""
    command = [sys.executable, "-c", DRIVER.format(before=before), *map(str, arguments)]
    (file,) = (argument for argument in arguments if isinstance(argument, Path))
    environment = {**os.environ, "TMPDIR": str(temporary(file)), **environment}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def temporary(file):
    """Where the run that writes a file has its temporary ones, for the case that it cannot remove them."""
    folder = file.parent / "temporary"
    folder.mkdir(exist_ok=True)
    return folder


def sweep(file, lengths):
    return ["run", "--variants", "sound", "--seq-len", ",".join(map(str, lengths)), "--threads", "1", "--out", file]


def wait_for_lines(file, count):
    for _ in range(600):
        if file.exists() and file.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{count} lines never came")


def lengths_of(file):
    return sorted(one.case.workload.query_length for one in store.read(file).records if one.status == "measured")


def children_of(pid):
    return psutil.Process(pid).children(recursive=True)


def all_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not alive


def whole_lines(data):
    """Every line of a file but a last one without its end, as JSON."""
    lines = data.split(b"\n")
    return [json.loads(line) for line in lines[:-1] if line]


# --- killed ---------------------------------------------------------------------------------------------------


def test_a_killed_run_loses_nothing_and_leaves_no_worker(fake_bench, file):
    run = in_process_of_its_own(*sweep(file, range(1, 6)), FAKE_SECONDS="0.3")
    wait_for_lines(file, 2)
    workers = children_of(run.pid)
    assert workers
    run.kill()
    run.communicate()
    survived = lengths_of(file)
    assert 2 <= len(survived) < 5
    assert all_gone(workers)
    before = file.read_bytes()
    ended = fake_bench(*sweep(file, range(1, 6)), "--resume")
    assert ended.code == 0, ended.err
    assert f"1/{5 - len(survived)} sound" in ended.err
    assert file.read_bytes().startswith(before)
    assert lengths_of(file) == [1, 2, 3, 4, 5]


def test_killed_again_and_again_at_any_moment(fake_bench, file):
    """Whatever is on disk stays there, byte by byte, and in the end every case stands there once."""
    draw, lengths = random.Random(20), range(1, 31)  # noqa: S311  # no secret
    before = b""
    for _ in range(5):
        run = in_process_of_its_own(*sweep(file, lengths), "--resume", FAKE_SECONDS="0.05")
        time.sleep(draw.uniform(0.5, 2.0))
        run.kill()
        run.communicate()
        now = file.read_bytes() if file.exists() else b""
        assert now.startswith(before)
        assert len({json.dumps(line["case"]) for line in whole_lines(now)}) == len(whole_lines(now))
        before = now
    assert fake_bench(*sweep(file, lengths), "--resume").code == 0
    assert file.read_bytes().startswith(before)
    assert lengths_of(file) == [*lengths]
    assert len(whole_lines(file.read_bytes())) == len(lengths)


KILL = """
import os, signal
write, records = os.write, [0]
def killing(descriptor, data):
    if b'"schema"' in bytes(data):
        records[0] += 1
        if records[0] == 3:
            write(descriptor, data[:{cut}])
            os.kill(os.getpid(), signal.SIGKILL)
    return write(descriptor, data)
os.write = killing
"""


@pytest.mark.parametrize(("cut", "whole"), [("0", 2), ("1", 2), ("len(data) // 2", 2), ("-1", 3), ("len(data)", 3)])
def test_killed_in_the_middle_of_a_line(fake_bench, file, cut, whole):
    """Before it, after a byte, halfway, without its end alone, and before it is safely on disk."""
    run = in_process_of_its_own(*sweep(file, range(1, 6)), before=KILL.format(cut=cut))
    run.communicate(timeout=60)
    assert run.returncode == -signal.SIGKILL
    before = file.read_bytes()
    assert len(store.read(file).records) == whole
    ended = fake_bench(*sweep(file, range(1, 6)), "--resume")
    assert ended.code == 0, ended.err
    assert f"1/{5 - whole} sound" in ended.err
    assert ("run.jsonl line 3: cut short" in ended.err) == (cut in ("1", "len(data) // 2"))
    assert file.read_bytes().startswith(before)
    assert lengths_of(file) == [1, 2, 3, 4, 5]


# --- interrupted ----------------------------------------------------------------------------------------------


# What a shell starts in the background ignores Ctrl-C, and so does all that it starts: these tests too, it may be.
HEARS_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""  # also where the tests were started in the background, or with nohup


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupting_ends_with_130_and_everything_so_far(file, number):
    run = in_process_of_its_own(*sweep(file, range(1, 6)), before=HEARS_CTRL_C, FAKE_SECONDS="0.3")
    wait_for_lines(file, 1)
    workers = children_of(run.pid)
    run.send_signal(number)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    command = shlex.join(map(str, ["python", "-m", "bench", *sweep(file, range(1, 6)), "--resume"]))
    assert f"error: interrupted; everything measured so far is in {file}; go on with: {command}\n" in err
    assert "Traceback" not in err
    assert store.read(file).problems == []
    assert all_gone(workers)
    assert list(temporary(file).iterdir()) == []


def interrupted(*arguments, folder, when):
    """The last line of a command in a folder that is interrupted when it has said something."""
    command = [sys.executable, "-c", DRIVER.format(before=HEARS_CTRL_C), *map(str, arguments)]
    environment = {**os.environ, "FAKE_SECONDS": "0.3", "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for line in run.stderr:
        if when in line:
            break
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    return err.splitlines()[-1]


def test_interrupting_names_the_file_that_nobody_named(fake_bench, tmp_path, monkeypatch):
    arguments = ["run", "--variants", "sound", "--seq-len", "1,2,3,4,5", "--threads", "1"]
    said = interrupted(*arguments, folder=tmp_path, when="1/5 sound")
    (file,) = (tmp_path / "results/runs").glob("*.jsonl")
    command = said.partition("go on with: python -m bench ")[2]
    assert f"everything measured so far is in {file.relative_to(tmp_path)}; " in said
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert fake_bench(*shlex.split(command)).code == 0
    assert lengths_of(file) == [1, 2, 3, 4, 5]


def test_interrupting_what_writes_nothing_names_nothing(tmp_path):
    arguments = ["verify", "--variants", "sound", "--seq-len", "1,2,3,4,5", "--threads", "1"]
    assert interrupted(*arguments, folder=tmp_path, when="1/5 sound") == "error: interrupted"


# --- the disk, and others ---------------------------------------------------------------------------------------


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
"""


def test_a_disk_that_is_full_keeps_what_fits_and_says_what_to_do(fake_bench, file):
    fake_bench(*sweep(file, [1]))
    size = file.stat().st_size
    file.unlink()
    run = in_process_of_its_own(*sweep(file, range(1, 6)), before=FULL.format(size=size * 7 // 2))
    _, err = run.communicate(timeout=60)
    assert run.returncode == 3
    assert f"cannot write to {file}: File too large; what was measured before is there, mend this and give" in err
    assert "Traceback" not in err
    assert store.read(file).problems == []
    survived = lengths_of(file)
    assert len(survived) == 3
    ended = fake_bench(*sweep(file, range(1, 6)), "--resume")
    assert "1/2 sound" in ended.err
    assert lengths_of(file) == [1, 2, 3, 4, 5]


def test_a_file_that_is_removed_in_mid_sweep_is_there_again(file):
    run = in_process_of_its_own(*sweep(file, range(1, 6)), FAKE_SECONDS="0.3")
    wait_for_lines(file, 2)
    file.unlink()
    _, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert f"warning: {file} was removed or moved away; what was measured so far is written there again\n" in err
    assert lengths_of(file) == [1, 2, 3, 4, 5]


def test_a_file_that_is_replaced_in_mid_sweep_is_exit_3(fake_bench, file):
    run = in_process_of_its_own(*sweep(file, range(1, 6)), FAKE_SECONDS="0.3")
    wait_for_lines(file, 2)
    (file.parent / "mine").write_text("mine")
    (file.parent / "mine").replace(file)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 3
    (beside,) = file.parent.glob("run.*.jsonl")
    assert f"error: {file} was replaced by another file" in err
    assert "Traceback" not in err
    assert file.read_text() == "mine"
    assert fake_bench(*sweep(beside, range(1, 6)), "--resume").code == 0
    assert lengths_of(beside) == [1, 2, 3, 4, 5]


def may_not_be_written(tmp_path, _monkeypatch):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    folder = tmp_path / "results"
    folder.mkdir(mode=0o555)
    return folder / "run.jsonl"


def may_only_be_read(tmp_path, monkeypatch):
    """As on a file system that is mounted so."""
    folder, real = tmp_path / "results", os.open
    folder.mkdir()

    def refusing(path, flags, *rest, **options):
        if Path(path).is_relative_to(folder) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    return folder / "run.jsonl"


def has_a_file_for_a_folder(tmp_path, _monkeypatch):
    (tmp_path / "results").write_text("")
    return tmp_path / "results/run.jsonl"


@pytest.mark.parametrize("place", [may_not_be_written, may_only_be_read, has_a_file_for_a_folder])
def test_results_that_cannot_be_written_are_told_before_anything_is_measured(fake_bench, tmp_path, monkeypatch, place):
    monkeypatch.setenv("FAKE_TRACE", str(tmp_path / "trace"))
    out = place(tmp_path, monkeypatch)
    ended = fake_bench(*sweep(out, [1, 2]))
    assert ended.code == 2
    assert f"expected a file that can be written, cannot write {out}" in ended.err
    assert "give another --out" in ended.err
    assert not (tmp_path / "trace").exists()


def test_two_runs_on_one_file(fake_bench, file):
    first = in_process_of_its_own(*sweep(file, [1, 2, 3]), FAKE_SECONDS="0.4")
    wait_for_lines(file, 1)
    ended = fake_bench(*sweep(file, [1, 2, 3]), "--resume")
    assert ended.code == 2
    assert "is being written by another run" in ended.err
    first.communicate(timeout=60)
    assert first.returncode == 0
    assert lengths_of(file) == [1, 2, 3]


def test_a_damaged_line_in_the_middle_is_named_and_measured_again(fake_bench, file):
    fake_bench(*sweep(file, [1, 2, 3]))
    first, second, third = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + second.replace(b'"status"', b'"st\xff\x00us"') + third)
    ended = fake_bench(*sweep(file, [1, 2, 3]), "--resume")
    assert ended.code == 0
    assert "run.jsonl line 2: not a record" in ended.err
    assert "that line is lost" in ended.err
    assert "1/1 sound" in ended.err
    assert lengths_of(file) == [1, 2, 3]


def test_a_newer_schema_is_left_as_it_is(fake_bench, file):
    fake_bench(*sweep(file, [1]))
    newer = file.read_bytes() + file.read_bytes().replace(b'"schema":1', b'"schema":2')
    file.write_bytes(newer)
    ended = fake_bench(*sweep(file, [1, 2]), "--resume")
    assert ended.code == 3
    assert "line 2 has schema 2, and this version reads up to 1: upgrade attention-bench" in ended.err
    assert file.read_bytes() == newer
