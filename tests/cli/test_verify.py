from __future__ import annotations

import json
from pathlib import Path

FAULTS = Path(__file__).parents[1] / "fixtures/faults"


def test_right_variants_pass_with_their_errors(attnbench):
    ended = attnbench(
        "verify", "--variants", "naive_sdpa,linformer", "--seq-len", "33", "--mask", "full,causal", "--mode", "fwd_bwd",
        "--heads", "2", "--threads", "1", "--device", "cpu",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines() if line.startswith(("naive", "linformer"))]
    assert [(row[0], row[2]) for row in rows] == [
        (variant, mask) for variant in ("naive_sdpa", "linformer") for mask in ("full", "causal")
    ]
    for row in rows[:3]:
        own, tolerance, gradients, gradient_tolerance = map(float, row[5:9])
        assert own <= tolerance
        assert gradients <= gradient_tolerance
        assert row[9] == "correct"
    assert "unsupported:" in rows[3]


def test_a_file_that_never_comes_to_its_end_costs_the_time_of_a_case(fake_bench, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FAULTS.parents[2]))
    monkeypatch.setattr("bench.sweep.scout._ANSWER_SECONDS", 30.0)
    ended = fake_bench("verify", "--variant-file", FAULTS / "loops_on_import.py", "--variants", "x*", "--timeout", "1")
    assert ended.code == 2
    assert "not done after 1 s, loading the variant file" in ended.err
    assert "loops_on_import.py" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_wrong_variant_is_exit_1(attnbench, tmp_path):
    (tmp_path / "unscaled.py").write_text(
        "from dataclasses import replace\n"
        "from variants.naive_sdpa import VARIANT as RIGHT\n"
        "def build(workload, parameters):\n"
        "    return lambda query, key, value: (query @ key.mT).softmax(-1) @ value\n"
        "VARIANT = replace(RIGHT, name='unscaled', build=build)\n"
    )
    ended = attnbench(
        "verify", "--variant-file", tmp_path / "unscaled.py", "--variants", "unscaled", "--seq-len", "16",
        "--threads", "1", "--device", "cpu", "--json",
    )  # fmt: skip
    assert ended.code == 1
    told = json.loads(ended.out)
    assert told["case"]["variant"] == "unscaled"
    assert told["outcome"]["status"] == "incorrect"
    assert told["outcome"]["own_error"] > told["outcome"]["tolerance"]


def test_a_variant_that_fails_is_exit_1_and_named(fake_bench):
    ended = fake_bench(
        "verify", "--variant-file", FAULTS / "raises.py", "--variants", "raises,sound", "--seq-len", "8,13"
    )
    assert ended.code == 1
    assert "failed (build): ValueError: the scores went astray" in ended.out


def test_nothing_to_check_is_exit_3(fake_bench):
    ended = fake_bench("verify", "--variants", "picky", "--mask", "causal")
    assert ended.code == 3
    assert "no masks here" in ended.out


def test_nothing_is_timed(fake_bench):
    ended = fake_bench("verify", "--variants", "sound", "--seq-len", "8", "--json")
    assert json.loads(ended.out)["outcome"]["seconds"] == []
