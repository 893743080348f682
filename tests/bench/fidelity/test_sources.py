from __future__ import annotations

import pytest

from bench.errors import WrongUsageError
from bench.fidelity import fits, shipped, sources
from bench.sweep.suite import parse as parse_suite
from variants._contract import Workload


@pytest.mark.parametrize(
    "text", ["normal", "minilm", "minilm:0", "minilm:5:stretched", "minilm:stretched", "matched", "matched:3"]
)
def test_spelling_is_canonical(text):
    assert str(sources.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("minlm", r"inputs 'minlm' is unknown, expected one of normal, minilm, .*; did you mean 'minilm'\?"),
        ("minilm:6", "expected a layer from 0 to 5"),
        ("minilm:-1", "expected a layer from 0 to 5"),
        ("matched:stretched", "expected a layer from 0 to 5"),
        ("normal:3", "expected inputs such as"),
        ("minilm@", "expected inputs such as"),
        ("file:", "expected inputs such as"),
        ("file:nowhere.safetensors", "there is none at nowhere.safetensors"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(WrongUsageError, match=message):
        sources.parse(text)


def test_a_file_is_named_by_what_it_holds_and_found_by_that(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTION_BENCH_INPUT_FILES", "")
    first, second = tmp_path / "a" / "notes.txt", tmp_path / "b" / "notes.txt"
    for path, text in ((first, "one"), (second, "two")):
        path.parent.mkdir()
        path.write_text(text)
    named = [str(sources.parse(f"minilm:2@{path}")) for path in (first, second)]
    assert named[0].startswith("minilm:2@notes.txt#")
    assert str(tmp_path) not in named[0]
    assert named[0] != named[1]
    assert [sources.locate(name.partition("@")[2]) for name in named] == [first, second]
    assert str(sources.parse(named[0])) == named[0]  # as a worker gets it
    first.write_text("three")
    with pytest.raises(WrongUsageError, match="whose SHA-256 begins with"):
        sources.parse(named[0])


def test_suites_take_them_canonical(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTION_BENCH_INPUT_FILES", "")
    file = tmp_path / "notes.txt"
    file.write_text("words")
    (sweep,) = parse_suite({"sweep": [{"inputs": ["normal", f"matched:1@{file}"]}]}).sweeps
    assert sweep.inputs[0] == "normal"
    assert sweep.inputs[1].startswith("matched:1@notes.txt#")
    with pytest.raises(WrongUsageError, match=r"\[\[sweep\]\] 1, inputs: expected a layer"):
        parse_suite({"sweep": [{"inputs": "minilm:9"}]})


def encoder_workload(**changes):
    return Workload(**({"heads": 8, "head_dim": 32, "inputs": "minilm"} | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 64}, "its heads have 32 channels"),
        ({"value_head_dim": 16}, "its heads have 32 channels"),
        ({"kv_heads": 2}, "as many kv_heads as heads"),
        ({"heads": 24, "kv_heads": 24, "inputs": "minilm:1"}, "it has 12 heads"),
        ({"query_length": 8192, "inputs": "minilm:stretched"}, "at most 4096"),
    ],
)
def test_shapes_that_the_encoder_has_not(changes, reason, monkeypatch):
    monkeypatch.setattr(shipped, "encoder_missing", list)
    (found,) = fits.obstacles(encoder_workload(**changes))
    assert reason in found


def test_nothing_stands_against_what_it_has(monkeypatch):
    monkeypatch.setattr(shipped, "encoder_missing", list)
    assert fits.obstacles(encoder_workload(heads=72, kv_heads=72, query_length=9, key_length=40000)) == []
    assert fits.obstacles(Workload(inputs="normal")) == []


def test_a_missing_extra_is_a_reason_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shipped, "_ENCODER", "no_such_package_anywhere")
    (found,) = fits.obstacles(encoder_workload())
    assert found == "no_such_package_anywhere not installed: pip install 'attention-bench[fidelity]'"


def test_how_length_was_reached_is_noted():
    assert fits.notes(encoder_workload(query_length=512, key_length=512)) == []
    assert fits.notes(encoder_workload(query_length=1000, key_length=1000)) == [
        "minilm: 2 windows of 500 tokens, encoded apart, stand one after the other"
    ]
    (note,) = fits.notes(encoder_workload(query_length=1000, key_length=1000, inputs="minilm:3:stretched"))
    assert "512 positions are interpolated to 1000" in note
    assert fits.notes(encoder_workload(inputs="matched")) == []
