"""The command, with a small training and a small drop-in in real workers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import store
from bench.cli import main
from bench.fidelity import trial
from bench.sweep import supervisor
from tests.bench.extras import needs_encoder

ROOT = Path(__file__).parents[2]


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["train", *map(str, arguments)])
    return ended.value.code


def small(out, *more):
    return call("--task", "copy", "--seq-len", 16, "--steps", 20, "--batch", 4, "--out", out, "--device", "cpu", *more)


def trials_of(file):
    reading = store.read(file, apart=trial.KINDS)
    assert reading.problems == []
    return trial.of_lines(reading.apart)


def test_trials_are_recorded_and_taken_up_again(tmp_path, capsys):
    out = tmp_path / "it.jsonl"
    assert small(out, "--variants", "naive_sdpa,no_attention") == 3  # twenty steps solve nothing
    told = capsys.readouterr()
    assert "naive_sdpa does not reach 90% on seed 0" in told.err
    assert "copy, N = 16, at most 20 steps of 4; chance 1.6%; one seed: preliminary" in told.out
    lines = out.read_text().splitlines()
    assert [json.loads(line)["case"]["variant"] for line in lines] == ["naive_sdpa", "no_attention"]
    assert small(out, "--variants", "naive_sdpa") == 2  # the file exists
    assert small(out, "--variants", "naive_sdpa,no_attention", "--resume", "--seeds", 2) == 3
    assert out.read_text().splitlines()[:2] == lines
    found = trials_of(out)
    assert [(each.case.variant, each.case.workload.seed) for each in found.records[2:]] == [
        ("naive_sdpa", 1),
        ("no_attention", 1),
    ]
    assert found.problems == []
    assert not (tmp_path / ".it.jsonl.checkpoints").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "copy", "--seq-len", ","), "--seq-len: expected a value, or several joined by commas, got ','"),
        (("--task", "drop_in", "--steps", 777), "--steps: expected a task that takes it (recall, copy,"),
        (("--task", "drop_in", "--mask", "full"), "--mask: expected a task that takes it"),
        (("--task", "copy", "--pairs", 7), "--pairs: expected a task that takes it (recall), got copy; leave it out"),
        (("--task", "copy,needle", "--documents", 300), "--documents: expected a task that takes it (drop_in)"),
        (("--task", "copy", "--seeds", 100_000_000), "100000000 is not in the range 1<=x<=1000"),
        (("--task", "copy", "--steps", 10**20), "--steps: expected a whole number of at most 9223372036854775807"),
    ],
)
def test_what_would_not_be_heeded_is_refused(options, message, capsys):
    assert call("--variants", "topk", *options, "--dry-run") == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_a_file_that_never_comes_to_its_end_costs_the_time_of_a_trial(monkeypatch, capsys):
    monkeypatch.setattr(supervisor, "ENGINE", "tests.fixtures.fake_engine")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    file = ROOT / "tests/fixtures/faults/loops_on_import.py"
    assert call("--task", "copy", "--variants", "x", "--variant-file", file, "--timeout", 1) == 2
    assert "not done after 1 s, loading the variant file" in capsys.readouterr().err


def test_a_training_that_is_killed_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """The whole command by SIGKILL, in the middle of a training, in real workers."""
    engine = "tests.fixtures.hasty_engine"
    monkeypatch.setattr(supervisor, "ENGINE", engine)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    chosen = [
        "--task", "copy", "--variants", "naive_sdpa", "--seq-len", "16", "--steps", "300", "--batch", "4", "--device",
        "cpu",
    ]  # fmt: skip
    assert call(*chosen, "--out", tmp_path / "straight.jsonl") == 3
    out = tmp_path / "it.jsonl"
    checkpoints = tmp_path / ".it.jsonl.checkpoints"
    code = f"from bench.sweep import supervisor; supervisor.ENGINE = {engine!r}; from bench.cli import main; main()"
    running = subprocess.Popen([sys.executable, "-c", code, "train", *chosen, "--out", str(out)])
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("*.pt")) and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert list(checkpoints.glob("*.pt"))
    assert out.read_bytes() == b""  # not a line yet
    assert call(*chosen, "--out", out, "--resume") == 3
    (straight,), (resumed,) = (trials_of(path).records for path in (tmp_path / "straight.jsonl", out))
    assert resumed.outcome.notes == ["continued from a checkpoint"]
    assert resumed.outcome.accuracies == straight.outcome.accuracies
    assert resumed.outcome.final_accuracy == straight.outcome.final_accuracy
    assert len(resumed.outcome.accuracies) == 60
    assert len({accuracy for _, accuracy in resumed.outcome.accuracies}) > 5
    assert not checkpoints.exists()


def test_what_a_variant_cannot_do_is_a_line_with_its_reason(tmp_path, capsys):
    out = tmp_path / "it.jsonl"
    assert call("--task", "recall", "--variants", "uniform", "--seq-len", 32, "--steps", 20, "--out", out) == 3
    (record,) = trials_of(out).records
    assert record.status == "unsupported"
    assert record.outcome.reasons == ["recall takes 1 to 8 pairs at 32 tokens, got 16"]
    told = capsys.readouterr().err
    assert "recall: 1 of 1 trial is unsupported: recall takes 1 to 8 pairs at 32 tokens, got 16" in told
    assert "no exact attention" not in told


@needs_encoder
def test_a_drop_in_that_does_not_fit_says_so_on_the_terminal(tmp_path, capsys):
    out = tmp_path / "it.jsonl"
    assert call("--task", "drop_in", "--variants", "uniform", "--seq-len", 100_000, "--out", out) == 3
    told = capsys.readouterr().err
    assert "drop_in: 1 of 1 trial is unsupported: the encoder has " in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "sort", "--variants", "uniform"], "--task: task 'sort' is unknown"),
        (["--task", "copy", "--variants", "unifrom"], "did you mean 'uniform'?"),
        (["--task", "copy", "--variants", "uniform", "--param", "topk.k=3"], "--param names topk"),
        (["--task", "copy", "--variants", "uniform", "--mask", "sideways"], "expected a mask"),
        (["--task", "copy", "--variants", "uniform", "--resume"], "give it as --out"),
        (["--task", "copy", "--variants", "uniform", "--retry", "timeout"], "give --resume"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(arguments, message, capsys):
    assert call(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
