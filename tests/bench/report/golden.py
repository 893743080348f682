"""Writes the reports that tests compare with anew: ``python -m tests.bench.report.golden``. Read the difference."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import store
from bench.report import pages
from tests.bench import runs

FOLDER = Path(__file__).parents[2] / "fixtures/reports"
# The name of a page, and the runs that it is about.
REPORTS = {"odd": ["odd"], "processes": ["processes"], "hosts": ["gpu", "odd"]}


def page(name, folder):
    """The README.md of a report, written into ``folder``."""
    reading = store.read(*(runs.FOLDER / f"{run}.jsonl" for run in REPORTS[name]))
    return pages.write(reading, folder).read_text(encoding="utf-8")


if __name__ == "__main__":
    runs.write()
    for each in REPORTS:
        with tempfile.TemporaryDirectory() as scratch:
            (FOLDER / f"{each}.md").write_text(page(each, Path(scratch)), encoding="utf-8")
