from __future__ import annotations

import pytest

from bench.cli import main
from bench.cli.report import folder_name
from bench.record import Unsupported, encode
from tests.bench import runs
from tests.bench.report import made_trials as made


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    return ended.value.code


@pytest.fixture
def flex(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "flex.jsonl"
    path.write_bytes(encode(runs.record("flex", run_id="2024-03-01 a/b")) + b"\n")
    return path


def test_it_prints_where_the_report_is(flex, tmp_path, capsys):
    assert run(flex, "--out", tmp_path / "out") == 0
    assert capsys.readouterr() == (f"{tmp_path / 'out/README.md'}\n", "")
    assert "`flex`" in (tmp_path / "out/README.md").read_text()


def test_without_a_folder_the_run_names_it(flex, tmp_path, capsys):
    assert run(flex) == 0
    assert capsys.readouterr().out == "reports/2024-03-01-a-b/README.md\n"
    assert (tmp_path / "reports/2024-03-01-a-b/README.md").is_file()


@pytest.mark.parametrize(
    ("run_ids", "name"),
    [
        (["a", "a"], "a"),
        (["a", "b"], "a+b"),
        (["a", "b", "c", "d"], "a+b+2-more"),
        (["../x"], "x"),
        (["…/"], "run"),
        (["运行"], "运行"),
    ],
)
def test_folder_names(run_ids, name):
    assert folder_name(run_ids) == name


def test_several_files_are_one_report(flex, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    other.write_bytes(encode(runs.record("sdpa_flash", host=runs.GPU)) + b"\n")
    assert run(flex, other, "--out", "out") == 0
    assert "Example CPU and Example GPU" in (tmp_path / "out/README.md").read_text()


def test_damaged_lines_and_unknown_kinds_are_told_but_cost_no_report(tmp_path, capsys):
    assert run(runs.FOLDER / "odd.jsonl", "--out", tmp_path / "out") == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert "odd.jsonl line 14" in told[0]
    assert "unknown kind 'module'" in told[1]


def test_nothing_measured_is_told(tmp_path, capsys):
    path = tmp_path / "none.jsonl"
    path.write_bytes(encode(runs.record("flex", Unsupported(reasons=["no"]))) + b"\n")
    assert run(path, "--out", tmp_path / "out") == 0
    assert "nothing was measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (["missing.jsonl"], (2, "cannot read missing.jsonl")),
        (["flex.jsonl", "--baseline", "flx"], (2, "did you mean 'flex'?")),
        (["empty.jsonl"], (3, "nothing was written yet")),
        (["flex.jsonl", "--out", "flex.jsonl"], (2, "is a file")),
        (["flex.jsonl", "--out", "theirs"], (2, "is something else: give another --out")),
        ([], (2, "Missing argument")),
    ],
)
def test_mistakes_are_one_line(flex, tmp_path, capsys, arguments, ends):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/README.md").write_text("# Mine\n")
    code, words = ends
    assert run(*arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_trials_are_reported_and_no_unknown_kind(tmp_path, capsys):
    path = tmp_path / "trials.jsonl"
    trial = made.record("bigbird", made.replaced(0.9), run_id="inside")
    path.write_bytes(encode(trial) + b"\n" + encode(trial)[:-1] + b"\n")
    assert run(path, "--out", tmp_path / "out") == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'out/README.md'}\n"
    assert err.count("\n") == 1
    assert "trials.jsonl line 2" in err
    assert "`bigbird`" in (tmp_path / "out/README.md").read_text()
