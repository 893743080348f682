"""The command, with a small training and a small drop-in in real workers."""

from __future__ import annotations

import json

import pytest

from bench.cli import main
from bench.fidelity import trial


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["train", *map(str, arguments)])
    return ended.value.code


def small(out, *more):
    return call("--task", "copy", "--seq-len", 16, "--steps", 20, "--batch", 4, "--out", out, "--device", "cpu", *more)


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
    found = trial.read(out)
    assert [(each.case.variant, each.case.workload.seed) for each in found.records[2:]] == [
        ("naive_sdpa", 1),
        ("no_attention", 1),
    ]
    assert found.problems == []
    assert not (tmp_path / ".it.jsonl.checkpoints").exists()


def test_what_a_variant_cannot_do_is_a_line_with_its_reason(tmp_path, capsys):
    out = tmp_path / "it.jsonl"
    assert call("--task", "recall", "--variants", "uniform", "--seq-len", 32, "--steps", 20, "--out", out) == 3
    (record,) = trial.read(out).records
    assert record.status == "unsupported"
    assert record.outcome.reasons == ["recall takes 1 to 8 pairs at 32 tokens, got 16"]
    assert "no exact attention" in capsys.readouterr().err


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
