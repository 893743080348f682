from __future__ import annotations

import json

import pytest

from bench import store


@pytest.fixture
def shards(fake_bench, tmp_path):
    files = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    for number, file in enumerate(files, start=1):
        fake_bench("run", "--variants", "sound", "--seq-len", "1,2,3", "--shard", f"{number}/2", "--out", file)
    return files


def test_shards_become_one_file(fake_bench, shards, tmp_path):
    ended = fake_bench("merge", *shards, "--out", tmp_path / "all.jsonl")
    assert ended.code == 0
    assert "3 records of 2 runs on 1 hosts" in ended.out
    merged = store.read(tmp_path / "all.jsonl").records
    assert merged == store.read(*shards).records
    assert sorted(one.case.workload.query_length for one in merged) == [1, 2, 3]


def test_what_stands_twice_counts_once(fake_bench, shards, tmp_path):
    fake_bench("merge", shards[0], shards[0], "--out", tmp_path / "all.jsonl")
    assert (tmp_path / "all.jsonl").read_bytes() == shards[0].read_bytes()


def test_what_is_left_out_is_named(fake_bench, shards, tmp_path):
    module = json.loads(shards[0].read_text().splitlines()[0]) | {"case": {"kind": "module"}}
    with shards[0].open("a") as file:
        file.write(json.dumps(module) + "\n{broken\n")
    ended = fake_bench("merge", *shards, "--out", tmp_path / "all.jsonl")
    assert ended.code == 0
    assert "1 records of the unknown kind 'module'" in ended.err
    assert "1.jsonl line 4" in ended.err


def test_a_newer_schema_is_exit_3_and_nothing_is_written(fake_bench, shards, tmp_path):
    shards[1].write_text('{"schema": 99}\n')
    ended = fake_bench("merge", *shards, "--out", tmp_path / "all.jsonl")
    assert ended.code == 3
    assert "upgrade attention-bench" in ended.err
    assert not (tmp_path / "all.jsonl").exists()


def test_an_existing_file_is_not_overwritten(fake_bench, shards):
    before = shards[0].read_bytes()
    assert fake_bench("merge", shards[1], "--out", shards[0]).code == 2
    assert shards[0].read_bytes() == before


def test_a_missing_file_is_exit_2(fake_bench, tmp_path):
    ended = fake_bench("merge", tmp_path / "no.jsonl", "--out", tmp_path / "all.jsonl")
    assert ended.code == 2
    assert "cannot read" in ended.err
