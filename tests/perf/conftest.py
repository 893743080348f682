"""Options of ``nox -s perf``, and its tables after the last test."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("ratios")
    group.addoption("--write-ratios", action="store_true", help="write the tables of ratios to docs/variants.md")
    group.addoption(
        "--ratios-dir", type=Path, metavar="DIR", help="keep the figures of each pair there, and take what is there"
    )


@pytest.fixture(scope="session")
def figures(request):
    """Of each pair measured, by name; tables are made of them at the end."""
    found = {}
    yield found
    request.config.stash[FIGURES] = found


FIGURES = pytest.StashKey()


def pytest_terminal_summary(terminalreporter, config):
    found = config.stash.get(FIGURES, None)
    if not found:
        return
    from tests.perf import ratio_tables
    from tests.perf.ratios import PAIRS

    text = ratio_tables.section({name: found[name] for name in PAIRS if name in found})
    terminalreporter.section("measured ratios")
    terminalreporter.write_line(text)
    if config.getoption("--write-ratios", default=False):
        if missing := [name for name in PAIRS if name not in found]:
            terminalreporter.write_line(f"not written: {', '.join(missing)} were not measured", red=True)
            return
        page = ratio_tables.PAGE
        page.write_text(ratio_tables.written_into(page.read_text(encoding="utf-8"), text), encoding="utf-8")
        terminalreporter.write_line(f"written to {page}")
