"""Two revisions of a repository as a user compares them, most of it without torch and with made-up times."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import store
from bench.sweep import supervisor

PACED = "tests.fixtures.paced_engine"
MINE = """
from dataclasses import replace
from tests.fixtures.sound import variant

def fault():
    {fault}

VARIANT = replace(variant("{name}", fault), summary="{pace}")
"""
REAL = """
from dataclasses import replace
from variants.naive_sdpa import VARIANT as NAIVE

def build(workload, parameters):
    attend = NAIVE.build(workload, parameters)
    def again(query, key, value):
        for _ in range({calls} - 1):
            attend(query, key, value)
        return attend(query, key, value)
    return again

VARIANT = replace(NAIVE, name="{name}", build=build)
"""


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def mine(name="mine", pace=1000, fault="pass"):
    return MINE.format(name=name, pace=pace, fault=fault)


@pytest.fixture
def repository(tmp_path):
    """Commits each set of files as a revision, tagged 1, 2 and so on."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")

    def commit(*revisions):
        for number, files in enumerate(revisions, start=1):
            for path in root.glob("*.py"):
                path.unlink()
            for name, text in files.items():
                (root / name).write_text(text)
            git(root, "add", "-A")
            git(root, "commit", "-q", "--allow-empty", "-m", f"r{number}")
            git(root, "tag", str(number))
        return root

    return commit


@pytest.fixture
def paced(attnbench, monkeypatch):
    """Any command, with made-up times."""
    monkeypatch.setattr(supervisor, "ENGINE", PACED)
    return attnbench


@pytest.fixture
def ab(paced, tmp_path):
    """The command on revisions 1 and 2 with made-up times, into a folder of its own."""

    def run(root, *arguments, files=("mine.py",), pairs="5"):
        named = [word for file in files for word in ("--variant-file", file)]
        common = ("--repo", root, "--seq-len", "13", "--threads", "1", "--out", tmp_path / "out")
        return paced("ab", "1", "2", *common, *named, "--pairs", pairs, *arguments)

    run.command = paced
    return run


def verdicts(ended):
    return {one["name"].split()[0].partition("(")[0]: one["verdict"] for one in json.loads(ended.out)["decisions"]}


def left_of(root):
    """Work trees that git still knows of, beside the repository itself."""
    return git(root, "worktree", "list").splitlines()[1:]


def test_what_got_slower_fails_the_job_and_what_did_not_is_the_same(ab, repository, tmp_path):
    root = repository(
        {"mine.py": mine(), "other.py": mine("other")}, {"mine.py": mine(pace=1100), "other.py": mine("other")}
    )
    ended = ab(root, "--json", files=("mine.py", "other.py"))
    assert ended.code == 1, ended
    assert verdicts(ended) == {"mine": "slower", "other": "same"}
    records = store.read(tmp_path / "out/base.jsonl", tmp_path / "out/head.jsonl").records
    by_stage = {stage: set() for stage in ("screening", "confirming")}
    for record in records:
        by_stage[record.outcome.conditions["stage"]].add((record.case.variant, record.process))
    assert by_stage["screening"] == {(name, pair) for name in ("mine", "other") for pair in range(5)}
    assert by_stage["confirming"] == {("mine", pair) for pair in range(5, 15)}
    weighed = {(record.process, record.outcome.peak_bytes) for record in records}
    assert weighed == {(0, 1024)} | {(pair, None) for pair in range(1, 15)}  # checked at first, then timed only
    assert {record.source.git for record in records} == {git(root, "rev-parse", name) for name in ("1", "2")}
    assert left_of(root) == []
    again = ab.command("gate", tmp_path / "out/base.jsonl", tmp_path / "out/head.jsonl", "--json")
    assert (again.code, verdicts(again)) == (1, verdicts(ended))


def test_what_vanished_is_not_comparable(ab, repository):
    ended = ab(repository({"mine.py": mine()}, {}), pairs="4")
    assert ended.code == 3
    assert "missing" in ended.out


def test_the_same_revision_twice_is_fine(ab, repository):
    ended = ab(repository({"mine.py": mine()}, {"mine.py": mine()}))
    assert ended.code == 0, ended
    assert "no regression" in ended.out


def test_a_faster_head_is_no_failure(ab, repository):
    ended = ab(repository({"mine.py": mine()}, {"mine.py": mine(pace=800)}), "--json")
    assert ended.code == 0, ended
    assert verdicts(ended) == {"mine": "faster"}


def test_a_head_that_dies_broke_and_the_rest_goes_on(ab, repository, tmp_path):
    root = repository(
        {"mine.py": mine(), "other.py": mine("other")},
        {"mine.py": mine(fault="import os; os._exit(3)"), "other.py": mine("other")},
    )
    ended = ab(root, "--json", files=("mine.py", "other.py"))
    assert ended.code == 1, ended
    assert verdicts(ended) == {"mine": "broke", "other": "same"}
    pairs = [(record.case.variant, record.process) for record in store.read(tmp_path / "out/base.jsonl").records]
    assert sorted(pairs) == [("mine", 0), *(("other", pair) for pair in range(5))]  # what broke is known


@pytest.mark.parametrize("broken", ["def (:\n", "import os; os._exit(3)\n"])
def test_a_head_that_cannot_be_loaded_broke_and_the_rest_goes_on(ab, repository, tmp_path, broken):
    root = repository({"mine.py": mine(), "other.py": mine("other")}, {"mine.py": broken, "other.py": mine("other")})
    ended = ab(root, "--json", files=("mine.py", "other.py"))
    assert ended.code == 1, ended
    assert verdicts(ended) == {"mine": "broke", "other": "same"}
    (failed,) = [one for one in store.read(tmp_path / "out/head.jsonl").records if one.case.variant == "mine"]
    revision = git(root, "rev-parse", "2")
    assert (failed.status, failed.source.git) == ("failed", revision)
    assert failed.outcome.message.startswith(f"head ({revision[:10]}): ")
    assert "'mine.py'" in failed.outcome.message
    assert str(tmp_path) not in failed.outcome.message
    again = ab.command("gate", tmp_path / "out/base.jsonl", tmp_path / "out/head.jsonl", "--json")
    assert (again.code, verdicts(again)) == (1, verdicts(ended))


def test_a_head_of_which_nothing_can_be_loaded_broke(ab, repository):
    ended = ab(repository({"mine.py": mine()}, {"mine.py": "raise ValueError('no')\n"}), "--json")
    assert ended.code == 1, ended
    assert verdicts(ended) == {"mine": "broke"}


def test_a_base_that_cannot_be_loaded_is_wrong_usage(ab, repository):
    root = repository({"mine.py": "def (:\n"}, {"mine.py": mine()})
    ended = ab(root)
    assert ended.code == 2, ended
    last = ended.err.splitlines()[-1]
    assert last.startswith(
        f"error: base ({git(root, 'rev-parse', '1')[:10]}): variant file 'mine.py' cannot be imported"
    )
    assert left_of(root) == []


def test_a_death_that_does_not_repeat_costs_nothing(ab, repository, tmp_path):
    fault = f"import os, pathlib; p = pathlib.Path({str(tmp_path / 'died')!r}); p.exists() or (p.touch(), os._exit(3))"
    ended = ab(repository({"mine.py": mine()}, {"mine.py": mine(fault=fault)}), "--json")
    assert ended.code == 0, ended
    (first, *_) = [record for record in store.read(tmp_path / "out/head.jsonl").records if record.process == 0]
    assert any("a first try ended" in note for note in first.outcome.notes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ab", "1", "nothing"), "expected a revision of"),
        (("ab", "1", "--exec=x"), "No such option"),
        (("ab", "1", "2"), "expected --variant-file"),
        (("ab", "1", "2", "--variant-file", "absent.py"), "neither revision has it"),
        (("ab", "1", "2", "--variant-file", "../mine.py"), "inside the repository"),
        (("ab", "1", "2", "--variant-file", "mine.py", "--pairs", "2"), "give --pairs 4 at least"),
        (("ab", "1", "2", "--variant-file", "mine.py", "--budget", "0.5"), "expected .* seconds at least"),
    ],
)
def test_wrong_usage_is_one_line(paced, repository, tmp_path, arguments, said):
    root = repository({"mine.py": mine()}, {"mine.py": mine()})
    ended = paced(*arguments, "--repo", root, "--out", tmp_path / "out", "--seq-len", "8")
    assert ended.code == 2, ended
    last = ended.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert re.search(said, last), last
    assert left_of(root) == []


def test_trials_take_no_turns(paced, repository, tmp_path):
    root = repository({"mine.py": mine()}, {"mine.py": mine()})
    suite = tmp_path / "trials.toml"
    suite.write_text('[[trial]]\ntask = "copy"\nvariants = "mine"\n')
    ended = paced(
        "ab", "1", "2", "--variant-file", "mine.py", "--repo", root, "--suite", suite, "--out", tmp_path / "o"
    )
    assert ended.code == 2, ended
    assert "trials alone" in ended.err.splitlines()[-1]


def test_runs_that_are_there_are_not_overwritten(ab, repository, tmp_path):
    root = repository({"mine.py": mine()}, {"mine.py": mine()})
    (tmp_path / "out").mkdir()
    (tmp_path / "out/head.jsonl").write_text("precious\n")
    ended = ab(root)
    assert ended.code == 2
    assert (tmp_path / "out/head.jsonl").read_text() == "precious\n"


def test_a_job_that_is_killed_leaves_records_and_no_work_tree(repository, tmp_path):
    root = repository({"mine.py": mine()}, {"mine.py": mine()})
    out, folder = tmp_path / "out", tmp_path / "temporary"
    folder.mkdir()
    script = (
        "from bench.sweep import supervisor; from bench.cli import main; "
        f"supervisor.ENGINE = {PACED!r}; main(['ab', '1', '2', '--repo', {str(root)!r}, '--variant-file', 'mine.py', "
        f"'--seq-len', '8', '--threads', '1', '--pairs', '500', '--out', {str(out)!r}])"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: (out / "head.jsonl").is_file() and (out / "head.jsonl").stat().st_size > 0)
    assert len(left_of(root)) == 2
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    wait_for(lambda: left_of(root) == [] and not any(folder.iterdir()))
    assert store.read(out / "head.jsonl").records


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_twice_the_work_is_slower_for_real(attnbench, repository, tmp_path):
    root = repository(
        {"mine.py": REAL.format(name="mine", calls=1), "other.py": REAL.format(name="other", calls=1)},
        {"mine.py": REAL.format(name="mine", calls=2), "other.py": REAL.format(name="other", calls=1)},
    )
    (tmp_path / "policy.toml").write_text("significance = 0.05\n")  # so that few pairs can show it
    ended = attnbench(
        "ab", "1", "2", "--repo", root, "--variant-file", "mine.py", "--variant-file", "other.py", "--seq-len", "192",
        "--heads", "2", "--threads", "1", "--device", "cpu", "--time-budget", "0.03", "--pairs", "3", "--json",
        "--out", tmp_path / "out", "--policy", tmp_path / "policy.toml",
    )  # fmt: skip
    assert ended.code == 1, ended
    found = verdicts(ended)
    assert found["mine"] == "slower"
    assert found["other"] not in ("slower", "broke", "missing")
    assert Path(tmp_path / "out/base.jsonl").is_file()
