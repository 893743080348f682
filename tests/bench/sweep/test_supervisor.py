from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.errors import WrongUsageError
from bench.measure import room
from bench.measure.room import Room
from bench.record import Case, Crashed, OutOfMemory, Settings, Timeout
from bench.sweep import messages, supervisor
from bench.sweep.supervisor import LostError, Supervised
from tests.fixtures.sound import FAULTY
from variants._contract import Workload

FAULTS = Path(__file__).parents[2] / "fixtures/faults"
SETTINGS = Settings(threads=1)
CASE = Case(variant="x", workload=Workload(query_length=FAULTY, key_length=FAULTY))


def worker(**options):
    return Supervised(engine="tests.fixtures.fake_engine", **options)


def prepared(fault):
    return messages.Prepare(variant=fault, file=str(FAULTS / f"{fault}.py"), device="cpu", settings=SETTINGS)


def lost(fault, *, timeout_seconds=30.0, **options):
    """What becomes of a worker that measures a faulty case."""
    with worker(**options) as started:
        started.ask(prepared(fault), timeout_seconds=30)
        measure = messages.Measure(case=CASE, ceilings={"copy_bytes_per_second": 1.0})
        with pytest.raises(LostError) as error:
            started.ask(measure, timeout_seconds=timeout_seconds)
        assert not psutil.pid_exists(started.pid)
        return error.value.outcome


def test_a_hoarder_is_ended_at_its_limit():
    outcome = lost("allocates", memory_bytes=150 << 20)
    assert isinstance(outcome, OutOfMemory)
    assert "above 0.15 GiB (--memory-limit)" in outcome.message


def test_a_hoarder_is_ended_before_the_machine_is(monkeypatch):
    monkeypatch.setattr(room, "tightest", lambda: Room(1 << 30, 1 << 20))
    outcome = lost("allocates")
    assert isinstance(outcome, OutOfMemory)
    assert "lest the machine come to a halt" in outcome.message


def test_a_kill_by_the_system_for_want_of_memory_is_told_from_another(monkeypatch):
    assert isinstance(lost("kills_itself"), Crashed)
    kills = iter([3, 4])
    monkeypatch.setattr(supervisor, "_oom_kills", lambda: next(kills))
    outcome = lost("kills_itself")
    assert isinstance(outcome, OutOfMemory)
    assert "ran out of memory" in outcome.message


def test_endless_output_is_cut(monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "_OUTPUT_BYTES", 1 << 20)
    sizes = []
    real = os.truncate

    def truncate(path, size):
        sizes.append(Path(path).stat().st_size)
        real(path, size)

    monkeypatch.setattr(os, "truncate", truncate)
    assert isinstance(lost("prints_endlessly", timeout_seconds=1.0), Timeout)
    assert sizes


def test_what_is_no_message_is_a_crash():
    outcome = lost("scribbles")
    assert isinstance(outcome, Crashed)
    assert "what is no message" in outcome.message


def test_a_refusal_is_wrong_usage_and_the_worker_lives_on():
    with worker() as started:
        with pytest.raises(WrongUsageError, match="has no VARIANT"):
            started.ask(prepared("no_variant"), timeout_seconds=30)
        started.ask(prepared("prints"), timeout_seconds=30)


def test_an_engine_that_cannot_be_imported_says_why():
    with Supervised(engine="no.such.engine") as started, pytest.raises(LostError, match="No module named 'no'"):
        started.ask(prepared("prints"), timeout_seconds=30)


def test_a_busy_worker_and_all_that_it_started_die_with_their_parent(tmp_path):
    """The sweep is killed, which nobody can heed; what an attention started has hidden as well as it can."""
    code = f"""
from bench.sweep.messages import *
from bench.record import *
from bench.sweep.supervisor import Supervised
from variants._contract import Workload
with Supervised(engine="tests.fixtures.fake_engine") as worker:
    worker.ask({prepared("starts_and_loops")!r}, timeout_seconds=30)
    tell = lambda stage: stage == "build" and print(worker._token, worker._process.pid, worker.pid, flush=True)
    worker.ask(Measure(case={CASE!r}), timeout_seconds=600, on_stage=tell)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = psutil.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    token, *kept = parent.stdout.readline().split()
    wait_until(lambda: len(marked(token)) == 2 + 3)  # keeper, worker, and three children
    started = marked(token)
    assert {int(process) for process in kept} <= {process.pid for process in started}
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive
    wait_until(lambda: not list(tmp_path.iterdir()))


def marked(token):
    """Processes that hold the token in their environment or among their arguments."""
    found = psutil.process_iter(["environ", "cmdline"])
    return [one for one in found if token in ((one.info["environ"] or {}).get(supervisor._TOKEN), *one.info["cmdline"])]


def wait_until(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("that never came true")


def test_no_descriptor_and_no_folder_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor.tempfile, "tempdir", str(tmp_path))
    before = psutil.Process().num_fds()
    for _ in range(3):
        with worker() as started:
            started.ask(prepared("prints"), timeout_seconds=30)
        lost("exits")
    assert psutil.Process().num_fds() == before
    assert list(tmp_path.iterdir()) == []


def test_threads_reach_the_libraries():
    with worker(threads=3) as started:
        started.ask(prepared("prints"), timeout_seconds=30)
        environment = psutil.Process(started.pid).environ()
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert environment["OMP_WAIT_POLICY"] == "passive"


def test_no_room_for_a_worker_says_what_to_do(monkeypatch):
    monkeypatch.setattr(supervisor.tempfile, "tempdir", "/nowhere/at/all")
    with pytest.raises(supervisor.StartError, match=r"cannot start a worker: No such file.*--resume"):
        worker().__enter__()


# --- framing --------------------------------------------------------------------------------------------------


def test_messages_come_in_pieces():
    sent = [messages.Doing(stage="build"), messages.Doing(stage="time"), messages.Prepared()]
    data = b"".join(map(messages.frame, sent))
    for size in (1, 3, len(data)):
        unframer = messages.Unframer(messages.AnyReply)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [message for piece in pieces for message in unframer.feed(piece)] == sent


def test_a_nan_arrives():
    done = messages.Done(outcome=Crashed(stage="time", message=""), seconds={"time": float("nan")})
    (heard,) = messages.Unframer(messages.AnyReply).feed(messages.frame(done))
    assert heard.seconds["time"] != heard.seconds["time"]


@pytest.mark.timeout(60)
def test_an_interruption_does_not_wait_for_a_busy_worker(monkeypatch):
    monkeypatch.setattr(supervisor, "_GRACE_SECONDS", 1000.0)

    def interrupt(stage):
        if stage == "build":
            raise KeyboardInterrupt

    started = worker().__enter__()
    started.ask(prepared("loops"), timeout_seconds=30)
    with pytest.raises(KeyboardInterrupt):
        started.ask(messages.Measure(case=CASE), timeout_seconds=600, on_stage=interrupt)
    started.end()
    assert not psutil.pid_exists(started.pid)
