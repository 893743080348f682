from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import variants

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


# --- the page ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    done = subprocess.run(
        [sys.executable, "-m", "bench", "list", "--markdown", "--device", "cpu"],
        capture_output=True, text=True, check=True, encoding="utf-8", env=os.environ | {"PYTHONUTF8": "1"},
    )  # fmt: skip
    return done.stdout


def rows_of(page, name):
    section = page.split(f"### `{name}`\n")[1].split("\n### ")[0]
    return dict(re.findall(r"^\| ([a-z ]+) \| (.*) \|$", section, flags=re.MULTILINE))


PACKAGES = (
    "linformer_pytorch",
    "nystrom_attention",
    "performer_pytorch",
    "reformer_pytorch",
    "transformers",
    "xformers",
)


@pytest.mark.skipif(not all(map(importlib.util.find_spec, PACKAGES)), reason="the page is of all packages")
@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="the page is without flash-attn")
def test_the_page_in_docs_is_what_is_printed(page):
    committed = (Path(__file__).parents[2] / "docs/variants.md").read_text(encoding="utf-8")
    generated, measured = committed.split("\n## Measured ratios\n")
    assert generated == page, "write it anew: nox -s variants"
    assert measured.strip()


def test_the_page_has_everything_of_every_variant(page):
    for name, variant in variants.find().items():
        section = page.split(f"### `{name}`\n")[1].split("\n### ")[0]
        assert variant.summary in section
        assert f"```math\n{variant.equation}\n```" in section
        for trap in variant.traps:
            assert f"- {trap}" in section
        facts = rows_of(page, name)
        assert facts["exact"] == variant.exact_when
        assert {"cost", "masks", "shapes"} <= facts.keys()
        assert variant.paper is None or variant.paper.title in facts["paper"]


def test_the_page_says_of_masks_what_the_variants_do(page):
    assert rows_of(page, "naive_sdpa")["masks"] == "all"
    assert rows_of(page, "sdpa_math")["masks"] == "all but `softcap:30`"
    assert rows_of(page, "linformer")["masks"] == "`full`, `padding:0.8`"
    assert rows_of(page, "fast_weight")["masks"] == "`causal`, `causal+padding:0.8`"  # padding only where it is causal
    assert rows_of(page, "channel")["shapes"].startswith("refuses fewer queries than keys")
    assert "CPU" in rows_of(page, "sdpa_cudnn")["lacks here"]
    assert "lacks here" not in rows_of(page, "naive_sdpa")
    assert rows_of(page, "bahdanau")["cost"] == "time O(N²), memory O(N)"


def test_a_variant_of_ones_own_has_a_section_without_what_it_does_not_say(fake_bench):
    ended = fake_bench("list", "--markdown", "--device", "cpu")
    assert ended.code == 0
    assert "### `sound`" in ended.out
    assert "```math" not in ended.out


def test_one_way_to_say_it_at_a_time(fake_bench):
    ended = fake_bench("list", "--markdown", "--json")
    assert ended.code == 2
    assert "give one of them" in ended.err
