from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from bench.cli import main
from bench.errors import NotComparableError, WrongUsageError
from bench.record import encode
from bench.report import index, pages
from bench.store import Reading
from tests.bench import runs


@pytest.fixture
def folder(tmp_path):
    found = runs.sweep(("naive_sdpa", "linformer"), masks=("full",), modes=("fwd",))
    pages.write(Reading(found, [], {}), tmp_path / "b")
    pages.write(Reading([runs.record("flex", host=runs.GPU)], [], {}), tmp_path / "a")
    (tmp_path / "no-report").mkdir()
    return tmp_path


def test_every_report_by_name_with_its_picture_and_headline(folder):
    text = index.write(folder).read_text()
    first, second = "[a: Attention on Example GPU](a/README.md)", "[b: Attention on Example CPU](b/README.md)"
    assert text.index(first) < text.index(second)
    assert "- **full, fwd**: exact: `naive_sdpa` at every length" in text
    for target in re.findall(r'(?:href|src|srcset)="([^"]+)"|\]\(([^)]+)\)', text):
        assert (folder / next(filter(None, target))).is_file()
    assert "b/speedup.svg" in text


def test_the_same_reports_give_the_same_bytes(folder):
    first = index.write(folder).read_bytes()
    assert index.write(folder).read_bytes() == first


def test_a_page_of_somebody_else_is_left_alone(folder):
    (folder / "README.md").write_text("mine")
    with pytest.raises(WrongUsageError, match="is something else"):
        index.write(folder)
    assert (folder / "README.md").read_text() == "mine"


def test_a_full_disk_leaves_an_earlier_page_as_it_was(folder, monkeypatch):
    before = index.write(folder).read_bytes()
    write_bytes = Path.write_bytes

    def half(path, content):
        write_bytes(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(WrongUsageError, match="No space left on device"):
        index.write(folder)
    assert (folder / "README.md").read_bytes() == before
    assert {file.name for file in folder.iterdir()} == {"README.md", "a", "b", "no-report"}


def test_no_reports_and_damaged_cards(tmp_path):
    with pytest.raises(NotComparableError, match="found none"):
        index.write(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/report.json").write_text("{")
    with pytest.raises(WrongUsageError, match=r"cannot read .*report\.json"):
        index.write(tmp_path)


def test_on_the_command_line_alone_or_after_a_report(folder, capsys):
    (folder / "run.jsonl").write_bytes(encode(runs.record("flex", run_id="c")) + b"\n")
    for arguments, ends in (
        (["--index", str(folder)], [f"{folder}/README.md"]),
        ([str(folder / "run.jsonl"), "--out", str(folder / "c"), "--index", str(folder)],
         [f"{folder}/c/README.md", f"{folder}/README.md"]),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main(["report", *arguments])
        assert ended.value.code == 0
        assert capsys.readouterr().out.split() == ends
    assert "c/README.md" in (folder / "README.md").read_text()
