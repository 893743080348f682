"""The documentation is followed literally."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench import store

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_add_a_variant_works_as_written(tmp_path):
    page = (ROOT / "docs/add-a-variant.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (console,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    (tmp_path / "sigmoid.py").write_text(code)
    for line in console.strip().splitlines():
        words = shlex.split(line.removeprefix("$ "))
        if "run" in words:
            words += ["--time-budget", "0.1"]
        done = subprocess.run(
            [sys.executable, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
    records = store.read(tmp_path / "sigmoid.jsonl").records
    assert {record.case.variant for record in records} == {"naive_sdpa", "sigmoid"}
    assert {record.status for record in records} == {"measured"}
    assert (tmp_path / "reports/sigmoid/README.md").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
