"""Everything by which known gates pass when they should not, and the code that it has here."""

from __future__ import annotations

import json
import math
import random
import xml.etree.ElementTree as ET

import pytest

from bench.record import OutOfMemory, encode
from tests.bench import runs


def record(run_id, process, length, *, slower=1.0, **changes):
    draw = random.Random(f"{run_id} {process} {length}")  # noqa: S311  # no secret
    seconds = 1e-6 * length * slower * math.exp(draw.gauss(0, 0.002))
    outcome = runs.measured([seconds], **changes.pop("outcome", {}))
    return runs.record(outcome=outcome, length=length, process=process, run_id=run_id, **changes)


def run(run_id="base", lengths=(256, 512, 1024), *, processes=10, **changes):
    return [record(run_id, process, length, **changes) for process in range(processes) for length in lengths]


@pytest.fixture
def gate(attnbench, tmp_path, monkeypatch):
    """Write two runs (records, or lines as they are) and compare them."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)

    def compare(base, head, *options, command="gate"):
        for name, records in (("base", base), ("head", head)):
            lines = [one if isinstance(one, bytes) else encode(one) for one in records]
            (tmp_path / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        return attnbench(command, "base.jsonl", "head.jsonl", *options)

    return compare


def with_outcome(records, **changes):
    """The first case's outcome, changed as JSON."""
    found = []
    for one in records:
        built = json.loads(encode(one))
        if built["case"]["workload"]["query_length"] == 256:
            built["outcome"] |= changes
        found.append(json.dumps(built).encode())
    return found


def test_identical_code_passes(gate):
    ended = gate(run(), run("head"))
    assert ended.code == 0, ended.out + ended.err
    assert "no regression (exit code 0)" in ended.out


FAULTS = {
    "a deleted benchmark": (lambda: run("head", (256, 512)), 3),
    "a deleted benchmark in some processes only": (lambda: run("head")[:-1], 3),
    "another machine": (lambda: run("head", host=runs.GPU, device="cpu"), 3),
    "a NaN": (lambda: [line.replace(b'"seconds":[', b'"seconds":[NaN,') for line in map(encode, run("head"))], 3),
    "a time of null": (lambda: with_outcome(run("head"), seconds=[None]), 3),
    "no samples": (lambda: with_outcome(run("head"), seconds=[]), 3),
    "a failure written as a time of 0": (lambda: with_outcome(run("head"), seconds=[0.0]), 3),
    "a time of 0 among others": (lambda: with_outcome(run("head"), seconds=[0.0, 3e-4, 3e-4]), 3),
    "a negative time": (lambda: with_outcome(run("head"), seconds=[-1.0]), 3),
    "an OOM written as 0 bytes": (lambda: with_outcome(run("head"), peak_bytes=0), 3),
    "a memory that was not weighed": (lambda: with_outcome(run("head"), peak_bytes=None), 3),
    "a counter that says 0 FLOPs": (lambda: with_outcome(run("head"), issued_flops=0), 3),
    "useful FLOPs of another problem": (lambda: with_outcome(run("head"), useful_flops=1), 3),
    "a check that was left out": (lambda: with_outcome(run("head"), own_error=None), 3),
    "an error over its tolerance": (lambda: with_outcome(run("head"), own_error=1.0), 1),
    "an OOM": (lambda: broken({"status": "out_of_memory", "stage": "time", "message": "no memory"}), 1),
    "an OOM by prediction": (lambda: broken({"status": "out_of_memory", "stage": "predicted", "message": "no"}), 3),
    "a skipped result": (lambda: broken({"status": "unsupported", "reasons": ["not today"]}), 1),
    "an exception": (lambda: broken({"status": "failed", "stage": "time", "message": "raised"}), 1),
    "a wrong result": (lambda: broken({"status": "incorrect", "stage": "check", "message": "off"}), 1),
    "another kernel": (lambda: broken({"status": "fell_back", "stage": "check", "message": "math"}), 1),
    "one regression of many": (lambda: [record("head", process, length, slower=1.2 if length == 512 else 1.0)
                                        for process in range(10) for length in (256, 512, 1024)], 1),
    "a file of a newer schema": (
        lambda: [line.replace(b'"schema":1', b'"schema":2') for line in map(encode, run("head"))], 3),
    "an empty file": (list, 3),
    "a cut line": (lambda: [*map(encode, run("head")), encode(run("head")[0])[:80]], 3),
    "records of unknown kinds": (
        lambda: [*map(encode, run("head")), encode(run()[0]).replace(b'"operator"', b'"module"')], 3),
    "other settings": (lambda: run("head", settings=runs.Settings(threads=64)), 3),
    "other cases altogether": (lambda: run("head", seed=5), 3),
    "more memory by one byte": (lambda: with_outcome(run("head"), peak_bytes=1024**2 + 1), 1),
}  # fmt: skip


def broken(outcome):
    found = []
    for one in run("head"):
        built = json.loads(encode(one))
        if built["case"]["workload"]["query_length"] == 256:
            built["outcome"] = outcome
        found.append(json.dumps(built).encode())
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_what_must_not_pass(gate, fault):
    head, code = FAULTS[fault]
    ended = gate(run(), head())
    assert ended.code == code, ended.out + ended.err


def test_faster_is_no_failure(gate):
    ended = gate(run(), run("head", slower=0.5))
    assert ended.code == 0
    assert "3 faster" in ended.out


def test_nothing_measured_at_all(gate):
    failed = [runs.record(outcome=OutOfMemory(stage="time", message="no"), run_id="base")]
    assert gate(failed, failed).code == 3


def test_a_missing_file_is_wrong_usage(attnbench, tmp_path):
    assert attnbench("gate", tmp_path / "no.jsonl", tmp_path / "neither.jsonl").code == 2
    assert attnbench("gate", tmp_path / "no.jsonl").code == 2
    assert attnbench("gate").code == 2


def test_too_much_noise_is_inconclusive(gate):
    noisy = [
        runs.record(outcome=runs.measured([1e-3 * (1 + 0.08 * (process % 5))]), process=process, run_id=name)
        for name in ("base", "head")
        for process in range(5)
    ]
    ended = gate(noisy[:5], [*reversed(noisy[5:8]), *noisy[5:7]][:3])
    assert ended.code == 4, ended.out
    assert "inconclusive" in ended.out


@pytest.mark.parametrize(("margin", "code"), [('"30%"', 0), ("0.30", 0), ('"10%"', 1), ("0.10", 1)])
def test_percent_against_fraction(gate, tmp_path, margin, code):
    """A threshold that is a hundred times too small or too large would turn one of these around."""
    (tmp_path / "policy.toml").write_text(f"margin = {margin}")
    assert gate(run(), run("head", slower=1.2), "--policy", "policy.toml").code == code


def test_a_bad_policy_is_wrong_usage(gate, tmp_path):
    (tmp_path / "policy.toml").write_text("margin = 3")
    ended = gate(run(), run("head"), "--policy", "policy.toml")
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 1


def test_removals_with_an_expiry(gate, tmp_path):
    for until, code in (("2999-01-01", 0), ("2001-01-01", 3)):
        (tmp_path / "policy.toml").write_text(
            f"[[removals]]\nvariant = 'naive_sdpa'\nuntil = {until}\nreason = 'replaced'\n"
        )
        assert gate(run(), run("head", (256, 512)), "--policy", "policy.toml").code == code


def test_allow(gate):
    head = run("head", settings=runs.Settings(threads=64))
    assert gate(run(), head, "--allow", "settings").code == 0
    ended = gate(run(), head, "--allow", "setings")
    assert ended.code == 2
    assert "did you mean 'settings'" in ended.err


# --- outputs --------------------------------------------------------------------------------------------------


def worse():
    return [*run("head", (256,), slower=1.2), *run("head", (512,), outcome={"peak_mib": 2}), *run("head", (1024,))]


def _junit(folder):
    return ET.parse(folder / "j.xml").getroot()  # noqa: S314  # our own


def test_files(gate, tmp_path):
    (tmp_path / "out").mkdir()
    ended = gate(run(), worse(), "--markdown", "out/c.md", "--junit", "j.xml", "--code-quality", "q.json")
    assert ended.code == 1
    comment = (tmp_path / "out/c.md").read_text()
    assert comment.startswith("### ❌ attention-bench: 2 regressions")
    assert "<details>" in comment
    suite = _junit(tmp_path)
    assert suite.attrib["tests"] == "4"
    assert suite.attrib["failures"] == "2"
    assert {case.attrib["classname"] for case in suite.iter("testcase") if case.find("failure") is not None} == {
        "time.naive_sdpa",
        "memory.naive_sdpa",
    }
    remarks = json.loads((tmp_path / "q.json").read_text())
    assert [remark["location"]["path"] for remark in remarks] == ["variants/naive_sdpa.py"] * 2
    assert len({remark["fingerprint"] for remark in remarks}) == 2


def test_json_is_all_of_stdout(gate):
    ended = gate(run(), worse(), "--json")
    built = json.loads(ended.out)
    assert built["exit_code"] == ended.code == 1
    assert built["counts"] == {"slower": 1, "same": 2}
    slow = next(one for one in built["decisions"] if one["verdict"] == "slower")
    assert slow["case"]["workload"]["query_length"] == 256
    assert slow["ratio"]["low"] > 1.1
    assert [one["gate"] for one in built["findings"]] == ["memory"]


def test_annotations_where_github_runs_it(gate, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    ended = gate(run(), worse(), "--json")
    commands = [line for line in ended.err.splitlines() if line.startswith("::")]
    assert commands[0].startswith("::error title=attention-bench%3A slower::naive_sdpa full fwd 256 ×1.2")
    assert "more than 5.0%25" in commands[0]
    assert len(commands) == 2
    assert json.loads(ended.out)
    assert "2 regressions" in (tmp_path / "summary.md").read_text()


def test_a_report_where_gitlab_runs_it(gate, tmp_path, monkeypatch):
    monkeypatch.setenv("GITLAB_CI", "true")
    gate(run(), worse())
    assert len(json.loads((tmp_path / "gl-code-quality-report.json").read_text())) == 2


def test_no_annotations_elsewhere(gate, tmp_path):
    ended = gate(run(), worse())
    assert "::" not in ended.out + ended.err
    assert not (tmp_path / "gl-code-quality-report.json").exists()


def test_a_file_that_cannot_be_written_is_wrong_usage(gate, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert gate(run(), run("head"), "--markdown", "folder").code == 2
    assert gate(run(), run("head"), "--junit", "file/x.xml").code == 2


@pytest.mark.parametrize("option", ["--markdown", "--junit", "--code-quality"])
@pytest.mark.parametrize("command", ["gate", "compare"])
def test_a_file_in_no_folder_is_wrong_usage_and_no_folder_is_made(gate, tmp_path, command, option):
    ended = gate(run(), run("head"), option, "deep/er/x.md", command=command)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err == f"error: {option}: expected a file in a folder, but deep/er is none; make it, or give another\n"
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize("command", ["gate", "compare"])
def test_a_run_against_itself_passes_and_says_so(gate, command):
    ended = gate(run(), run(), command=command)
    assert ended.code == 0
    assert "base and head are the same run (base)" in ended.out
    assert "the same run" not in gate(run(), run("head"), command=command).out


def test_a_run_among_those_that_it_is_held_against_is_named(gate):
    ended = gate([*run(), *run("head")], run("head"))
    assert ended.code == 0
    assert "base and head have a run in common (head)" in ended.out


def test_the_table_says_what_failed_first(gate):
    table = gate(run(), worse()).out.splitlines()
    assert table[2].startswith("slower ✗")
    assert any(line.startswith("memory") and "worse ✗" in line for line in table)
    assert not any(line.startswith("same") for line in table)
    assert any(line.startswith("same") for line in gate(run(), worse(), "--all").out.splitlines())


def test_names_that_xml_and_markdown_could_take_for_markup(gate, tmp_path):
    odd = [record("base", process, 64, variant="a|b<c>\x01") for process in range(10)]
    head = [record("head", process, 64, variant="a|b<c>\x01", slower=2) for process in range(10)]
    assert gate(odd, head, "--junit", "j.xml", "--markdown", "m.md").code == 1
    assert _junit(tmp_path).find("testcase").attrib["name"].startswith("a|b<c>")
    assert "a\\|b\\<c\\>" in (tmp_path / "m.md").read_text()


# --- the baseline that is kept ----------------------------------------------------------------------------------


def test_the_kept_baseline_of_the_machine(gate, attnbench):
    gate(run(), run("head", slower=1.2))
    assert attnbench("baseline", "save", "base.jsonl").code == 0
    ended = attnbench("gate", "--baseline", "head.jsonl")
    assert ended.code == 1
    assert attnbench("gate", "--baseline", "base.jsonl").code == 0
    assert attnbench("gate", "--baseline", "base.jsonl", "head.jsonl").code == 2
    assert attnbench("gate", "base.jsonl", "head.jsonl", "--name", "main").code == 2


def test_without_one_the_hosts_are_named(gate, attnbench):
    gate(run(), run("head", host=runs.GPU, device="cpu"))
    assert "none" in attnbench("gate", "--baseline", "head.jsonl").err
    attnbench("baseline", "save", "base.jsonl")
    ended = attnbench("gate", "--baseline", "head.jsonl")
    assert ended.code == 3
    assert f"{runs.CPU.fingerprint} (Example CPU)" in ended.err
    ended = attnbench("gate", "--baseline", "base.jsonl", "--name", "mian")
    assert ended.code == 2
    assert "did you mean 'main'" in ended.err


def test_the_self_test_is_another_command(attnbench, monkeypatch):
    import sys
    import types

    import click

    @click.command()
    @click.option("--hours", type=float)
    def command(hours):
        click.echo(f"tested for {hours}")
        return 7

    monkeypatch.setitem(sys.modules, "bench.cli.selftest", types.SimpleNamespace(command=command))
    ended = attnbench("gate", "selftest", "--hours", "2")
    assert (ended.code, ended.out) == (7, "tested for 2.0\n")
