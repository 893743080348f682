from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import store
from bench.record import Measured

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests/fixtures/faults"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def lengths_of(file, status="measured"):
    return sorted(one.case.workload.query_length for one in store.read(file).records if one.status == status)


# --- a run ----------------------------------------------------------------------------------------------------


def test_every_cell_is_a_line_with_a_status(fake_bench, file):
    ended = fake_bench(
        "run", "--variants", "sound,picky", "--seq-len", "8,1k", "--mask", "full,causal", "--mode", "fwd,bwd",
        "--processes", "2", "--device", "cpu", "--out", file,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    records = store.read(file).records
    assert len(records) == 2 * 2 * 2 * 2 * 2
    assert len({one.identity() for one in records}) == len(records)
    unsupported = [one for one in records if one.status == "unsupported"]
    assert {(one.case.variant, one.case.workload.mask) for one in unsupported} == {("picky", "causal")}
    assert {tuple(one.outcome.reasons) for one in unsupported} == {("no masks here",)}
    assert all(one.status == "measured" for one in records if one not in unsupported)


def test_a_record_says_where_from(fake_bench, file):
    secret = file.parent / "secret"
    secret.mkdir()
    fake_bench(
        "run", "--variants", "sound", "--seq-len", "8", "--threads", "3", "--time-budget", "2", "--timeout", "60",
        "--param", "sound.width=9", "--out", secret / "x.jsonl",
    )  # fmt: skip
    (record,) = store.read(secret / "x.jsonl").records
    assert record.case.parameters == {"width": 9, "style": "plain"}
    assert (record.settings.threads, record.settings.time_budget_seconds, record.settings.timeout_seconds) == (3, 2, 60)
    assert record.host.fingerprint == "fake"
    assert record.host.ceilings["matmul_flops_per_second:float32"] == 1e9
    assert record.outcome.timer == "fake, 1e+09"  # the ceilings reached the worker
    assert record.source.git == "r1"
    assert record.about.family == "exact"
    assert record.command.startswith("python -m bench run --variants sound")
    assert record.command.endswith("--out x.jsonl")
    assert "secret" not in (secret / "x.jsonl").read_text()
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", record.run_id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record.at)


def test_without_out_the_file_is_named_by_the_run(fake_bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ended = fake_bench("run", "--variants", "sound", "--seq-len", "8")
    (file,) = (tmp_path / "results/runs").glob("*.jsonl")
    assert store.read(file).records[0].run_id == file.stem
    assert f"results  results/runs/{file.name}" in ended.out


def test_the_summary_counts_compares_and_accounts(fake_bench, file):
    ended = fake_bench("run", "--seq-len", "8,16", "--mask", "full,causal", "--baseline", "sound", "--out", file)
    rows = {line.split()[0]: line.split() for line in ended.out.splitlines() if line.strip()}
    assert rows["picky"] == ["picky", "2", "2", "1.00×", "(2)"]
    assert rows["sound"] == ["sound", "4", "1.00×", "(4)"]
    assert "speed-up over sound" in ended.out
    assert re.search(r"in the variants' own code .*%, checking .*%, starting 3 workers .*%, the rest .*%", ended.out)
    assert "8.00 µs" in ended.err
    assert "8.00 µs" not in ended.out


def test_the_summary_tells_parameters_apart_where_there_are_several(fake_bench, file):
    ended = fake_bench(
        "run", "--variants", "sound,picky", "--param", "sound.width=1,2", "--seq-len", "8", "--out", file
    )
    names = [line.split("  ")[0] for line in ended.out.splitlines() if line.startswith(("sound", "picky"))]
    assert names == ["picky", "sound width=1 style=plain", "sound width=2 style=plain"]


def test_a_baseline_that_was_not_measured_gives_no_speed_ups(fake_bench, file):
    ended = fake_bench("run", "--variants", "sound", "--seq-len", "8", "--out", file)
    assert "speed-up" not in ended.out


def test_pytest_benchmark_json(fake_bench, file, tmp_path):
    fake_bench(
        "run", "--variants", "sound", "--seq-len", "8", "--out", file, "--pytest-benchmark-json", tmp_path / "b.json"
    )
    (benchmark,) = json.loads((tmp_path / "b.json").read_text())["benchmarks"]
    assert benchmark["stats"]["median"] == pytest.approx(8e-6)


def test_nothing_measured_is_exit_3(fake_bench, file):
    ended = fake_bench("run", "--variants", "picky", "--mask", "causal", "--out", file)
    assert ended.code == 3
    assert "nothing was measured" in ended.err
    assert "1 of 1 cases unsupported: " in ended.err
    assert store.read(file).records[0].outcome.reasons[0] in ended.err
    assert [one.status for one in store.read(file).records] == ["unsupported"]


def test_shards_share_out_the_cases(fake_bench, tmp_path):
    parts = []
    for shard in ("1/2", "2/2"):
        file = tmp_path / f"{shard[0]}.jsonl"
        fake_bench("run", "--variants", "sound", "--seq-len", "1,2,3,4,5", "--shard", shard, "--out", file)
        parts.append(lengths_of(file))
    assert parts == [[1, 3, 5], [2, 4]]


def test_dry_run_shows_the_plan_and_measures_nothing(fake_bench, file):
    ended = fake_bench(
        "run", "--variants", "sound,picky", "--seq-len", "512", "--mask", "full,causal", "--processes", "3",
        "--time-budget", "7", "--out", file, "--dry-run",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert not file.exists()
    assert "cases  4, in 3 processes each; 3 unsupported" in ended.out
    assert "no masks here" in ended.out
    # 4·512²·64 operations at a third of 10⁹/s; 2·8·512²·4 bytes of scores
    (row, *_) = [line.split() for line in ended.out.splitlines() if line.startswith("sound")]
    assert row[1:8] == ["width=4", "style=plain", "512", "full", "fwd", "float32", "201"]
    assert row[9] == "16.0"
    assert "right within a factor of a few" in ended.out


def test_a_variant_file_is_measured_beside_the_others(fake_bench, file):
    fake_bench(
        "run", "--variants", "prints,sound", "--variant-file", FAULTS / "prints.py", "--seq-len", "8", "--out", file
    )
    assert {one.case.variant for one in store.read(file).records} == {"prints", "sound"}


def test_a_variant_that_dies_when_asked_costs_its_own_case_only(fake_bench, file):
    ended = fake_bench(
        "run", "--variant-file", FAULTS / "obstructs.py", "--variants", "obstructs,picky", "--seq-len", "8,13",
        "--mask", "causal", "--out", file,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert {(one.case.variant, one.case.workload.query_length, one.status) for one in store.read(file).records} == {
        ("obstructs", 8, "measured"),
        ("obstructs", 13, "crashed"),
        ("picky", 8, "unsupported"),
        ("picky", 13, "unsupported"),
    }


# --- mistakes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variants", "sond"], "'sond' is unknown, expected one of naive_sdpa, sound, picky; did you mean 'sound'?"),
        (["--variants", "sound", "--skip", "sound"], "everything chosen is skipped"),
        (["--variants", "sound", "--mask", "casual"], "did you mean 'causal'?"),
        (["--variants", "sound", "--seq-len", "8q"], "--seq-len: expected a length such as 512 or 8k, got '8q'"),
        (["--variants", "sound", "--dtype", "float33"], "did you mean 'float32'?"),
        (["--variants", "sound", "--mode", "forward"], "--mode: mode 'forward' is unknown, expected one of fwd, bwd"),
        (["--variants", "sound", "--inputs", "zeros"], "--inputs: inputs 'zeros' is unknown"),
        (["--variants", "sound", "--device", "gpu"], "--device: expected auto, cpu, cuda or cuda:1, got 'gpu'"),
        (["--variants", "sound", "--param", "sound.widht=3"], "did you mean 'width'?"),
        (["--variants", "sound", "--param", "width=3"], "--param: expected variant.name=value"),
        (["--variants", "sound", "--param", "picky.width=3"], "not among the chosen variants"),
        (["--variants", "sound", "--param", "sound.width=wide"], "Expected `int`"),
        (["--variants", "sound", "--baseline", "picky"], "variant 'picky' is unknown, expected one of sound"),
        (["--variants", "sound", "--shard", "3/2"], "--shard: expected i/n with 1 ≤ i ≤ n"),
        (["--variants", "sound", "--shard", "2/2"], "got 1 case;"),
        (["--variants", "sound", "--heads", "8", "--kv-heads", "3"], "multiple of kv_heads"),
        (["--variants", "sound", "--threads", "0"], "--threads: expected a whole number of at least 1"),
        (["--variants", "sound", "--memory-limit", "lots"], "--memory-limit: expected a size such as 8G"),
        (["--variants", "sound", "--retry", "failed"], "give --resume"),
        (["--variants", "sound", "--resume"], "--resume: expected the file"),
        (["--suite", "qick"], "suite 'qick' is unknown"),
        (["--suite", "no/such.toml"], "cannot read no/such.toml"),
        (["--variants", ""], "--variants: expected a value, got an empty text; is a shell variable not set?"),
        (["--variants", "sound", "--mask="], "--mask: expected a value, got an empty text"),
        (["--variants", "sound", "--out", " "], "--out: expected a value, got an empty text"),
        (["--variants", "sound", ""], "error: expected a value, got an empty text"),
        (["--variants", ","], "--variants: expected a value, or several joined by commas, got ','"),
        (["--variants", "sound", "--mask", "full", "--mask", " , "], "--mask: expected a value, or several joined"),
        (["--variants", "sound", "--resume", "--out", "x.jsonl", "--retry", ","], "--retry: expected a value, or"),
        (["--variants", "sound", "--out", FAULTS], "is a folder: name a file in it"),
        (["--variants", "sound", "--out", FAULTS, "--resume"], "is a folder: name a file in it"),
        ([], "expected what to measure"),
        (["--variant-file", FAULTS / "broken_import.py"], "No module named 'a_package_that_nobody_has'"),
        (["--variant-file", FAULTS / "no_variant.py"], "has no VARIANT"),
        (["--variant-file", FAULTS / "endless_default.py"], "parameter 'clip' cannot be inf, which no record can hold"),
        (["--variant-file", FAULTS / "dies_on_import.py"], "ended with exit code 6, loading the variant file"),
        (["--variant-file", FAULTS / "nowhere.py"], "expected a Python file"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_2(fake_bench, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ended = fake_bench("run", *arguments)
    assert ended.code == 2
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_an_existing_file_is_exit_2_before_anything_starts(fake_bench, file):
    file.write_text("mine")
    ended = fake_bench("run", "--variants", "sound", "--out", file)
    assert ended.code == 2
    assert "--resume" in ended.err
    assert file.read_text() == "mine"


def test_going_on_with_what_is_no_run_is_exit_2(fake_bench, file):
    file.write_text("important notes\nmore\n")
    ended = fake_bench("run", "--variants", "sound", "--seq-len", "8", "--out", file, "--resume")
    assert ended.code == 2
    assert "no line of" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert file.read_text() == "important notes\nmore\n"


# --- going on -------------------------------------------------------------------------------------------------


def test_resuming_measures_only_what_is_missing(fake_bench, file):
    fake_bench("run", "--variants", "sound", "--seq-len", "8,16", "--out", file)
    before = file.read_bytes()
    ended = fake_bench("run", "--variants", "sound", "--seq-len", "8,16,32", "--out", file, "--resume")
    assert ended.code == 0
    assert "1/1 sound 32" in ended.err
    assert file.read_bytes().startswith(before)
    assert lengths_of(file) == [8, 16, 32]
    assert len({one.run_id for one in store.read(file).records}) == 1


def test_resuming_a_complete_run_says_so(fake_bench, file):
    fake_bench("run", "--variants", "sound", "--seq-len", "8", "--out", file)
    ended = fake_bench("run", "--variants", "sound", "--seq-len", "8", "--out", file, "--resume")
    assert ended.code == 0
    assert "nothing is missing" in ended.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"FAKE_FINGERPRINT": "other"}, "host (fingerprint fake there, other here)"),
        ({"FAKE_REVISION": "r2"}, "source (git r1 there, r2 here)"),
        (["--time-budget", "1"], "settings (time_budget_seconds 3.0 there, 1.0 here)"),
    ],
)
def test_resuming_elsewhere_is_exit_3(fake_bench, file, monkeypatch, change, says):
    fake_bench("run", "--variants", "sound", "--seq-len", "8", "--out", file)
    before = file.read_bytes()
    options = change if isinstance(change, list) else []
    for name in change if isinstance(change, dict) else ():
        monkeypatch.setenv(name, change[name])
    ended = fake_bench("run", "--variants", "sound", "--seq-len", "16", "--out", file, "--resume", *options)
    assert ended.code == 3
    assert says in ended.err
    assert file.read_bytes() == before


def test_resuming_names_a_damaged_line_and_repeats_it(fake_bench, file):
    fake_bench("run", "--variants", "sound", "--seq-len", "8,16", "--out", file)
    file.write_bytes(file.read_bytes()[:-40])
    ended = fake_bench("run", "--variants", "sound", "--seq-len", "8,16", "--out", file, "--resume")
    assert ended.code == 0
    assert "run.jsonl line 2" in ended.err
    assert lengths_of(file) == [8, 16]


def test_resuming_a_file_of_a_newer_schema_is_exit_3(fake_bench, file):
    file.write_text('{"schema": 2}\n')
    ended = fake_bench("run", "--variants", "sound", "--out", file, "--resume")
    assert ended.code == 3
    assert "upgrade attention-bench" in ended.err


def test_retry_repeats_what_failed_and_the_new_line_counts(fake_bench, file, tmp_path):
    bad = (FAULTS / "raises.py").read_text()
    (tmp_path / "raises.py").write_text(bad)
    arguments = [
        "run",
        "--variants",
        "raises",
        "--variant-file",
        tmp_path / "raises.py",
        "--seq-len",
        "8,13",
        "--out",
        file,
    ]
    fake_bench(*arguments)
    assert lengths_of(file, "failed") == [13]
    (tmp_path / "raises.py").write_text(bad.replace("raise ", "return "))
    assert "nothing is missing" in fake_bench(*arguments, "--resume").err
    fake_bench(*arguments, "--resume", "--retry", "crashed")
    assert lengths_of(file, "failed") == [13]
    ended = fake_bench(*arguments, "--resume", "--retry", "crashed,failed")
    assert "1/1 raises 13" in ended.err
    assert lengths_of(file) == [8, 13]
    assert file.read_bytes().count(b"\n") == 3


def test_measured_seconds_are_what_the_worker_said(fake_bench, file):
    fake_bench("run", "--variants", "sound", "--seq-len", "8", "--out", file)
    (record,) = store.read(file).records
    assert isinstance(record.outcome, Measured)
    assert record.outcome.seconds == [8e-6] * 3
