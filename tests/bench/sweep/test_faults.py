"""Attentions of variant files that compute something else than they should, and the table of all faults in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from bench.measure.torch_state import TorchState
from bench.record import Case, Measured, Settings
from bench.sweep import engine, messages
from bench.sweep.worker import Worker
from tests.bench.sweep import test_stations as processes
from tests.fixtures.sound import FAULTY
from variants._contract import Workload

ROOT = Path(__file__).parents[3]
FAULTS = ROOT / "tests/fixtures/faults"
SETTINGS = Settings(threads=1, time_budget_seconds=0.02, timeout_seconds=60)

# fault → status, stage and what the message says; None where the case is measured all the same
EXPECTED = {
    "raises": ("failed", "build", "ValueError: the scores went astray"),
    "raises_unpicklable": ("failed", "build", "LocalError: <function"),
    "raises_unspeakable": ("failed", "build", "UnspeakableError"),
    "runs_out_of_memory": ("out_of_memory", "build", "can't allocate memory"),
    "returns_nothing": ("failed", "build", "expected a tensor, got NoneType"),
    "wrong_shape": ("failed", "build", "expected an output of shape (1, 2, 13, 8), got (1, 2, 12, 8)"),
    "wrong_dtype": ("failed", "build", "expected an output of dtype float32, got float64"),
    "returns_nan": ("incorrect", "check", "1 of 208 numbers of the output are not finite"),
    "nearly_right": ("incorrect", "check", "is off by 0.001, where rounding explains"),
    "wrong_gradient": ("incorrect", "check", "the gradient of key is off by"),
    "same_tensor_twice": ("failed", "check", "the same tensor came back twice: the second call overwrote"),
    "over_an_input": ("failed", "build", "the output shares its memory with query"),
    "changes_inputs": ("failed", "build", "key was changed in place"),
    "wrong_later": ("incorrect", "time", "right at first, wrong after timing"),
    "keeps_by_address": ("incorrect", "time", "right at first, wrong after timing"),
    "keeps_by_content": None,
    "sets_state": ("failed", "build", "it changed torch's global state: threads from 1 to 2, default dtype"),
    "raises_half_a_letter": ("failed", "build", r"ValueError: lost \udc80 \x1b[31m"),
    "builds_nothing": ("failed", "build", "the variant's build gives None; expected a function of query, key and"),
    "obstacles_in_letters": ("failed", "start", "the variant's obstacles gives 'no'; expected a list of sentences"),
    "checks_against_nan": (
        "failed",
        "check",
        "the variant's reference is not finite: 208 of 208 numbers of its output",
    ),
    "ring_of_buffers": ("failed", "memory", "the same tensor came back twice: call 5 overwrote the result of the"),
    "keeps_more": None,
    "sets_modes": (
        "failed",
        "build",
        (
            "it changed torch's global state: dispatch modes from none to Dispatch, function modes from none to "
            "Function, anomaly detection from False to True, autocast on cpu from False to True, dtype of autocast on "
            "cpu from torch.bfloat16 to torch.float32, mkldnn from True to False, flushing of denormal numbers from "
            "False to True"
        ),
    ),
    "counts_a_fraction": ("failed", "time", "the variant counts 1.5 FLOPs; expected a whole number from 1 to"),
    "grows": ("failed", "memory", "the variant is not declared stochastic"),
    "counts_nothing": ("failed", "time", "the variant counts 0 FLOPs"),
}
MODES = {"wrong_gradient": "fwd_bwd"}

# Shown in other places: what they do to a supervisor, at the start of a command, or beside other options.
ELSEWHERE = {
    "prints_endlessly": "timeout",
    "scribbles": "crashed",
    "kills_itself": "out_of_memory",
    "broken_import": "exit code 2",
    "no_variant": "exit code 2",
    "dies_on_import": "exit code 2",
    "loops_on_import": "exit code 2",
    "endless_default": "exit code 2",
    "falls_back": "fell_back",
}


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr("bench.sweep.worker.pin", lambda threads: None)  # this process serves other tests too
    return Worker(engine, lambda reply: None)


def measured(worker, fault, length):
    mode = MODES.get(fault, "fwd")
    workload = Workload(heads=2, kv_heads=2, query_length=length, key_length=length, head_dim=8, mode=mode)
    return worker.answer(messages.Measure(case=Case(variant=fault, workload=workload))).outcome


def figures(outcome):
    """All of a record that must not depend on what ran before."""
    assert isinstance(outcome, Measured), outcome
    return (
        *(outcome.peak_bytes, outcome.output_bytes, outcome.saved_bytes, outcome.workspace_bytes),
        *(outcome.own_error, outcome.gradient_error, outcome.fidelity, outcome.dispatched),
    )


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_fault_costs_its_own_case_and_the_next_has_identical_figures(worker, fault):
    worker.answer(messages.Prepare(variant=fault, file=str(FAULTS / f"{fault}.py"), device="cpu", settings=SETTINGS))
    before, state = figures(measured(worker, fault, 16)), TorchState.now()
    outcome = measured(worker, fault, FAULTY)
    assert state.changes(TorchState.now()) == []
    if EXPECTED[fault] is None:
        figures(outcome)
    else:
        status, stage, message = EXPECTED[fault]
        assert (outcome.__struct_config__.tag, outcome.stage) == (status, stage), outcome
        assert message in outcome.message
    assert figures(measured(worker, fault, 16)) == before
    assert torch.get_num_threads() == 1
    assert torch.get_default_dtype() == torch.float32


def test_what_each_call_keeps_is_noted(worker):
    file = str(FAULTS / "keeps_more.py")
    worker.answer(messages.Prepare(variant="keeps_more", file=file, device="cpu", settings=SETTINGS))
    note = "keeps 1.00 MiB more with each call"
    assert note in measured(worker, "keeps_more", FAULTY).notes
    assert note not in measured(worker, "keeps_more", 16).notes


def test_another_kernel_than_claimed_is_a_fall_back(worker):
    file = str(FAULTS / "falls_back.py")
    worker.answer(messages.Prepare(variant="falls_back", file=file, device="cpu", settings=SETTINGS))
    outcome = measured(worker, "falls_back", FAULTY)
    assert outcome.__struct_config__.tag == "fell_back"
    assert "expected something like 'flash' to run" in outcome.message


# --- the documentation ----------------------------------------------------------------------------------------


_COLUMNS = 4


def rows():
    """The attentions that a row of the table is shown by, and its status."""
    page = (ROOT / "docs/measurement.md").read_text()
    section = page[page.index("## Faults") : page.index("## Processes")]
    for line in section.splitlines():
        if line.count("|") == _COLUMNS + 1 and not line.startswith(("|---", "| fault ")):
            _, status, _, shown_by = (cell.strip() for cell in line.strip("|").split("|"))
            yield re.findall(r"`(\w+)`", shown_by), status.replace("`", "")


def shown():
    statuses = {fault: expected[0] if expected else "measured" for fault, expected in EXPECTED.items()}
    statuses |= {fault: expected[0] if expected else "measured" for fault, expected in processes.EXPECTED.items()}
    return statuses | ELSEWHERE


def test_every_row_of_the_table_of_faults_is_shown_by_an_attention():
    for attentions, status in rows():
        assert attentions
        for attention in attentions:
            assert shown()[attention] in status, attention


def test_every_faulty_attention_stands_in_the_table():
    named = {attention for attentions, _ in rows() for attention in attentions}
    assert named == {file.stem for file in FAULTS.glob("*.py")}
