from __future__ import annotations

import json
from pathlib import Path

FAULTS = Path(__file__).parents[1] / "fixtures/faults"


def test_every_variant_with_whether_it_runs_here(attnbench):
    ended = attnbench("list", "--device", "cpu")
    assert ended.code == 0
    rows = {line.split()[0]: line for line in ended.out.splitlines() if line.strip()}
    assert "exact" in rows["naive_sdpa"]
    assert " yes " in rows["naive_sdpa"]
    assert "low_rank" in rows["linformer"]
    assert "approximate" in rows["linformer"]
    assert "no: " in rows["sdpa_cudnn"]


def test_json_tells_everything(attnbench):
    ended = attnbench("list", "--device", "cpu", "--json", "--variant-file", FAULTS / "prints.py")
    told = {one["name"]: one for one in json.loads(ended.out)}
    assert told["naive_sdpa"]["runnable"]
    assert told["naive_sdpa"]["obstacles"] == []
    assert not told["sdpa_cudnn"]["runnable"]
    assert told["sdpa_cudnn"]["obstacles"]
    assert told["linformer"]["paper"].startswith("Linformer")
    assert "rank" in told["linformer"]["parameters"]
    assert told["prints"]["family"] == "exact"


def test_a_broken_file_is_exit_2(fake_bench):
    ended = fake_bench("list", "--variant-file", FAULTS / "broken_import.py")
    assert ended.code == 2
    assert "a_package_that_nobody_has" in ended.err
