from __future__ import annotations

import json

import msgspec
import pytest

from bench import store
from bench.record import encode
from tests.bench import runs


def run(run_id, **changes):
    return [runs.record(outcome=runs.measured([1e-3]), process=number, run_id=run_id, **changes) for number in range(3)]


@pytest.fixture
def baseline(attnbench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def save(records, *options):
        (tmp_path / "run.jsonl").write_bytes(b"".join(encode(one) + b"\n" for one in records))
        return attnbench("baseline", "save", "run.jsonl", *options)

    return save


def kept(tmp_path, name="main"):
    return store.read(tmp_path / f"results/baselines/{runs.CPU.fingerprint}/{name}.jsonl").records


def test_it_is_kept_by_host_and_name(baseline, tmp_path):
    ended = baseline(run("one"))
    assert ended.code == 0
    assert kept(tmp_path) == run("one")
    assert "1 cases, 3 processes of 1 runs" in ended.out
    baseline(run("one"), "--name", "release")
    assert kept(tmp_path, "release") == run("one")


def test_nothing_is_overwritten_unasked(baseline, tmp_path):
    baseline(run("one"))
    assert baseline(run("two")).code == 2
    assert kept(tmp_path) == run("one")
    assert baseline(run("two"), "--replace").code == 0
    assert kept(tmp_path) == run("two")
    assert baseline(run("two"), "--replace", "--add").code == 2


def test_runs_are_added(baseline, tmp_path):
    baseline(run("one"))
    assert baseline(run("two"), "--add").code == 0
    assert kept(tmp_path) == [*run("one"), *run("two")]
    other = run("three", settings=runs.Settings(threads=9))
    assert baseline(other, "--add").code == 3
    assert kept(tmp_path) == [*run("one"), *run("two")]


def test_what_nobody_could_compare_with_is_not_kept(baseline):
    assert baseline([runs.record(outcome=runs.Failed(stage="time", message="no"))]).code == 3
    assert baseline([*run("one"), *run("two", host=msgspec.structs.replace(runs.CPU, fingerprint="f" * 16))]).code == 3
    assert baseline(run("one"), "--name", "../up").code == 2


def test_uncommitted_changes_are_warned_of(baseline):
    assert "uncommitted" in baseline(run("one", source=msgspec.structs.replace(runs.SOURCE, dirty=True))).err
    assert "coarsely" in baseline(run("one")[:1], "--name", "single").err


def test_list_and_show(baseline, attnbench):
    assert attnbench("baseline", "list").code == 0
    assert attnbench("baseline", "show").code == 3
    baseline(run("one"))
    listed = attnbench("baseline", "list").out
    assert runs.CPU.fingerprint in listed
    assert "Example CPU" in listed
    (row,) = json.loads(attnbench("baseline", "list", "--json").out)
    assert (row["runs"], row["processes"], row["cases"], row["revision"]) == (1, 3, 1, "0123456789")
    shown = attnbench("baseline", "show", runs.CPU.fingerprint[:4])
    assert shown.code == 0
    assert "naive_sdpa full fwd 1k" in shown.out
    assert "1.00 ms" in shown.out
    assert attnbench("baseline", "show", "dead").code == 2
    baseline(run("other", host=msgspec.structs.replace(runs.CPU, fingerprint="f" * 16)))
    assert attnbench("baseline", "show").code == 2
