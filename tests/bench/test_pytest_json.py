from __future__ import annotations

import getpass
import json
import platform
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pytest_benchmark import cli
from pytest_benchmark.logger import Logger
from pytest_benchmark.stats import Stats
from pytest_benchmark.storage.file import FileStorage

from bench import pytest_json
from bench.errors import WrongUsageError
from bench.record import Unsupported
from tests.bench import runs

RECORDS = [
    *runs.sweep(("naive_sdpa", "linformer", "xformers"), lengths=(256, 512), masks=("full",)),
    runs.record("注意力", runs.measured([4e-6])),
]


@example([0.1, *[1.0, 1.1] * 6, 9.0])
@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=50))
def test_statistics_are_those_of_pytest_benchmark(seconds):
    theirs = Stats()
    theirs.data = list(seconds)
    ours = pytest_json.stats(seconds)
    for field, value in theirs.as_dict().items():
        if isinstance(value, float):
            assert ours[field] == pytest.approx(value, rel=1e-9, abs=1e-9), field
        else:
            assert ours[field] == value, field
    assert ours["data"] == seconds


def test_its_storage_loads_the_file(tmp_path):
    pytest_json.write(RECORDS, tmp_path / "new/run.json")
    storage = FileStorage(str(tmp_path), Logger())
    found = {each["fullname"]: each for each in storage.load_benchmarks(str(tmp_path / "new/run.json"))}
    assert len(found) == sum(record.status == "measured" for record in RECORDS)
    one = found["attention/cpu-float32-1-8-8-64::naive_sdpa[256-full-fwd]"]
    assert one["rounds"] == 12
    assert one["median"] == pytest.approx(5.3e-3, rel=0.05)
    assert one["params"]["mask"] == "full"
    assert one["group"] == "cpu float32 full fwd 256"
    assert one["extra_info"]["peak_bytes"] == 4 * 2**20
    assert one["extra_info"]["relative_error"] == 3.1e-7


def test_its_own_compare_shows_every_benchmark(tmp_path, monkeypatch, capsys):
    pytest_json.write(RECORDS, tmp_path / "run.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest-benchmark", "compare", "run.json", "--group-by=group", "--csv=out.csv"])
    cli.main()
    shown = capsys.readouterr().out
    assert "benchmark 'cpu float32 full fwd 512': 2 tests" in shown
    assert "naive_sdpa[512-full-fwd_bwd]" in shown
    assert "linformer[512-full-fwd]" in (tmp_path / "out.csv").read_text()


def test_two_runs_can_be_compared_by_name(tmp_path, monkeypatch, capsys):
    for name, speed in (("old", 1.0), ("new", 2.0)):
        records = runs.sweep(("naive_sdpa",), lengths=(256,), masks=("full",), modes=("fwd",), speed=speed, run_id=name)
        pytest_json.write(records, tmp_path / f"{name}.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest-benchmark", "compare", "old.json", "new.json", "--between=median"])
    cli.main()
    shown = capsys.readouterr().out
    assert "naive_sdpa[256-full-fwd]" in shown
    assert "%" in shown


def test_names_are_distinct_where_cases_come_twice():
    processes = runs.sweep(("flex",), lengths=(256,), masks=("full",), modes=("fwd",), processes=2)
    other_run = runs.sweep(("flex",), lengths=(256,), masks=("full",), modes=("fwd",), run_id="other")
    other_parameters = [runs.record("flex", parameters={"block": block}, length=256) for block in (64, 128)]
    other_heads = [runs.record("flex", heads=4, kv_heads=4, length=256), runs.record("flex", seed=1, length=256)]
    records = [*processes, *other_run, *other_parameters, *other_heads]
    names = [each["fullname"] for each in pytest_json.document(records)["benchmarks"]]
    assert len(names) == len(set(names)) == len(records)


def test_nothing_measured_is_a_file_without_benchmarks(tmp_path):
    pytest_json.write([runs.record("xformers", Unsupported(reasons=["no"]))], tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["benchmarks"] == []
    assert pytest_json.document([])["benchmarks"] == []


def test_machine_and_commit_are_the_records_own(tmp_path):
    document = pytest_json.document(RECORDS)
    assert document["commit_info"]["id"] == runs.SOURCE.git
    assert document["datetime"] == RECORDS[0].at
    assert document["machine_info"]["cpu"] == {"brand_raw": "Example CPU", "count": 2}
    text = json.dumps(document)
    assert platform.node() not in text
    assert f"/{getpass.getuser()}" not in text


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(WrongUsageError, match="cannot write"):
        pytest_json.write(RECORDS, tmp_path)
