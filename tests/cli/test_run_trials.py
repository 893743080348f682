"""Suites with trials: one file, one progress, one way to take up what is missing. Workers measure nothing."""

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
from bench.fidelity import trial

ROOT = Path(__file__).parents[2]
FAKE = "tests.fixtures.fake_engine"
SUITE = """
[[sweep]]
variants = ["naive_sdpa", "sound"]
seq_len = [8, 16]
[[trial]]
task = "copy"
variants = ["naive_sdpa", "no_attention"]
seq_len = 16
seed = [0, 1]
steps = 40
"""


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "mine.toml").write_text(SUITE)
    return tmp_path / "mine.toml"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def kinds(file):
    return [json.loads(line)["case"].get("kind", "operator") for line in file.read_text().splitlines()]


def trials_in(file):
    found = trial.of_lines(store.read(file, apart=trial.KINDS).apart).records
    return [(each.case.variant, each.case.workload.seed) for each in found]


def test_the_sweep_comes_first_then_trials_all_in_one_file(fake_bench, suite, file):
    ended = fake_bench("run", "--suite", suite, "--out", file)
    assert ended.code == 0, ended.err
    assert kinds(file) == ["operator"] * 4 + ["task"] * 4
    assert trials_in(file) == [("naive_sdpa", 0), ("no_attention", 0), ("naive_sdpa", 1), ("no_attention", 1)]
    lines = [line for line in ended.err.splitlines() if "/8 " in line]
    assert len(lines) == 8
    assert lines[4].startswith("5/8 copy naive_sdpa 16 seed 0: 100.0% after 20 steps")
    assert "speed-up over naive_sdpa" in ended.out
    assert "copy, N = 16, at most 40 steps of 32" in ended.out
    assert re.search(r"starting 2 workers .*%, in trials .*%, the rest .*%", ended.out)
    assert len({json.loads(line)["run_id"] for line in file.read_text().splitlines()}) == 1


def test_resuming_takes_up_both(fake_bench, suite, file):
    fake_bench("run", "--suite", suite, "--out", file)
    whole = file.read_text().splitlines(keepends=True)
    for kept, missing in ((2, 6), (5, 3), (8, 0)):
        file.write_text("".join(whole[:kept]))
        ended = fake_bench("run", "--suite", suite, "--out", file, "--resume")
        assert ended.code == 0, ended.err
        assert file.read_text().splitlines(keepends=True)[:kept] == whole[:kept]
        assert sorted(kinds(file)) == ["operator"] * 4 + ["task"] * 4
        assert sum(f"/{missing} " in line for line in ended.err.splitlines()) == missing


def test_a_killed_run_loses_no_trial(fake_bench, suite, file):
    code = f"from bench.sweep import supervisor; supervisor.ENGINE = {FAKE!r}; from bench.cli import main; main()"
    environment = os.environ | {"FAKE_SECONDS": "0.3", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, "run", "--suite", str(suite), "--out", str(file)]
    running = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_bytes().count(b"\n") >= 6) and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    there = file.read_bytes()
    assert there.count(b"\n") >= 6
    assert fake_bench("run", "--suite", suite, "--out", file, "--resume").code == 0
    assert file.read_bytes().startswith(there)
    assert len(trials_in(file)) == 4
    assert len(kinds(file)) == 8


def test_retry_repeats_trials_too(fake_bench, suite, file):
    fake_bench("run", "--suite", suite, "--out", file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[-1]["outcome"] = {"status": "timeout", "stage": "start", "message": "not done"}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "nothing is missing" in fake_bench("run", "--suite", suite, "--out", file, "--resume").err
    ended = fake_bench("run", "--suite", suite, "--out", file, "--resume", "--retry", "timeout")
    assert "1/1 copy no_attention 16 seed 1: 10.0%" in ended.err
    assert len(kinds(file)) == 9
    assert len(trials_in(file)) == 4


def test_shards_share_out_trials_too_and_merge_keeps_them(fake_bench, suite, file, tmp_path):
    parts = [tmp_path / "1.jsonl", tmp_path / "2.jsonl", tmp_path / "3.jsonl"]
    for number, part in enumerate(parts, start=1):
        fake_bench("run", "--suite", suite, "--shard", f"{number}/3", "--out", part)
    assert [len(kinds(part)) for part in parts] == [3, 3, 2]
    ended = fake_bench("merge", *parts, "--out", file)
    assert ended.code == 0
    assert "8 records, 4 of them trials, of 3 runs on 1 hosts" in ended.out
    assert "left out" not in ended.err
    assert sorted(trials_in(file)) == [(name, seed) for name in ("naive_sdpa", "no_attention") for seed in (0, 1)]
    assert sorted(file.read_text().splitlines()) == sorted(
        line for part in parts for line in part.read_text().splitlines()
    )


def test_trials_alone_can_be_merged_and_a_damaged_one_is_named(fake_bench, suite, file, tmp_path):
    fake_bench("run", "--suite", suite, "--out", tmp_path / "all.jsonl")
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    (tmp_path / "some.jsonl").write_text("\n".join([*lines[4:6], lines[6].replace('"task":"copy"', '"task":7')]) + "\n")
    ended = fake_bench("merge", tmp_path / "some.jsonl", "--out", file)
    assert ended.code == 0
    assert "left out" in ended.err
    assert "some.jsonl line 3" in ended.err
    assert trials_in(file) == [("naive_sdpa", 0), ("no_attention", 0)]


def test_variants_from_outside_reach_both(fake_bench, suite, file):
    ended = fake_bench(
        "run", "--suite", suite, "--variants", "naive_sdpa,sound,no_attention", "--skip", "sound", "--seq-len", "32",
        "--out", file,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert {record.case.variant for record in store.read(file).records} == {"naive_sdpa"}
    assert {record.case.workload.query_length for record in store.read(file).records} == {32}
    assert trials_in(file) == [("naive_sdpa", 0), ("no_attention", 0), ("naive_sdpa", 1), ("no_attention", 1)]


def test_dry_run_shows_trials_and_makes_none(fake_bench, suite, file):
    ended = fake_bench("run", "--suite", suite, "--out", file, "--dry-run")
    assert ended.code == 0
    assert not file.exists()
    assert "cases  4, in 1 process each; 0 unsupported" in ended.out
    assert "trials  4; 0 unsupported" in ended.out
    rows = [line.split() for line in ended.out.splitlines() if line.startswith("copy")]
    assert [row[1] for row in rows] == ["naive_sdpa", "no_attention"] * 2
    assert rows[1][2:] == ["16", "full", "0", "348", "ms"]  # 40 steps of 32 sequences of 16 tokens, 17 µs each


def test_where_nothing_is_ranked_and_nothing_measured_it_is_exit_3(fake_bench, suite, file):
    suite.write_text(SUITE[SUITE.index("[[trial]]") :])
    ended = fake_bench("run", "--suite", suite, "--variants", "sound,no_attention", "--out", file)
    assert ended.code == 3
    assert "copy: sound width=4 style=plain does not reach 90% on seed 0, 1" in ended.err.splitlines()[-1]
    assert fake_bench("run", "--suite", suite, "--out", file.with_name("b.jsonl")).code == 0


def test_verify_leaves_trials_out(fake_bench, suite):
    ended = fake_bench("verify", "--suite", suite, "--json")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 4
    suite.write_text(SUITE[SUITE.index("[[trial]]") :])
    ended = fake_bench("verify", "--suite", suite)
    assert ended.code == 2
    assert "trials alone" in ended.err
