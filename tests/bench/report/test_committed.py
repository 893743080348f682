"""The reports that are committed: what they link to is there, and they are what their runs say today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import store
from bench.fidelity import trial
from bench.report import canvas, pages

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "reports").glob("**/README.md"))
RUNS = [run for run in sorted((ROOT / "results").glob("*.jsonl")) if (ROOT / "reports" / run.stem).is_dir()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(page):
    for found in re.findall(r'(?:href|src|srcset)="([^"]+)"|\]\(([^)#\s]+)\)', page.read_text(encoding="utf-8")):
        target = next(filter(None, found))
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.stem)
def test_a_report_is_what_its_run_says(run, tmp_path, monkeypatch):
    """After a change of words: ``nox -s report``."""
    monkeypatch.setattr(canvas, "_rendered", lambda figure, form: form.encode())
    reading = store.read(run, apart=trial.KINDS)
    new = pages.write(reading, tmp_path, tried=trial.of_lines(reading.apart)).read_text(encoding="utf-8")
    assert new == (ROOT / "reports" / run.stem / "README.md").read_text(encoding="utf-8")
