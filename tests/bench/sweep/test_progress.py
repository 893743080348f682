from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.fidelity.trial import Trained, TrialCase
from bench.record import Case, Failed, Measured, Unsupported
from bench.sweep import progress
from bench.sweep.plan import Cell
from bench.sweep.progress import Reporter
from variants._contract import Workload

MEASURED = Measured(
    seconds=[0.001, 0.003, 0.002],
    timer="fake",
    peak_bytes=3 << 20,
    setup_seconds=0.5,
    own_error=0.0,
    tolerance=1.0,
    useful_flops=1,
    issued_flops=1,
)
CELLS = [
    Cell(Case(variant="flex", workload=Workload(query_length=1024, key_length=2048, mask="causal")), process)
    for process in (0, 1)
]


def shown(*, terminal, outcomes):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
    with Reporter(CELLS, lambda cell: 1.0 + cell.process, console) as reporter:
        for cell, outcome in zip(CELLS, outcomes, strict=True):
            reporter.stage(cell, "time")
            reporter.done(cell, outcome)
        share = reporter._bar.tasks[0].percentage
    return text.getvalue(), share


def test_a_line_per_cell_where_there_is_no_terminal():
    text, _ = shown(terminal=False, outcomes=[MEASURED, Failed(stage="build", message="[red]no[/]")])
    assert text.splitlines() == [
        "1/2 flex 1k×2k causal fwd float32: 2.00 ms, peak 3.00 MiB",
        "2/2 flex 1k×2k causal fwd float32 #1: failed (build): [red]no[/]",
    ]


def test_a_bar_with_time_left_on_a_terminal():
    text, share = shown(terminal=True, outcomes=[MEASURED, Failed(stage="build", message="no")])
    assert "ETA" in text
    assert "2/2 flex 1k×2k causal fwd float32 #1: failed (build): no" in text
    assert "2.00 ms" not in text
    assert share == 100


def test_cells_weigh_what_they_are_expected_to_take():
    text = io.StringIO()
    console = Console(file=text, width=200)
    with Reporter(CELLS, lambda cell: 1.0 + 2 * cell.process, console) as reporter:
        reporter.done(CELLS[0], MEASURED)
        assert reporter._bar.tasks[0].percentage == 25


def trained(step=None):
    return Trained(
        accuracies=[],
        final_accuracy=0.957,
        steps=600,
        seconds=31.6,
        steps_to_target=step,
        seconds_to_target=None,
        chance=0.1,
        parameters=1,
        stopped_early=False,
    )


def test_a_training_moves_the_bar_with_its_steps():
    text = io.StringIO()
    workload = Workload(query_length=2048, key_length=2048, seed=2)
    trial = Cell(TrialCase(kind="task", task="copy", variant="flex", workload=workload), 0)
    with Reporter([CELLS[0], trial], lambda _: 2.0, Console(file=text, width=200)) as reporter:
        reporter.done(CELLS[0], MEASURED)
        reporter.stage(trial, "start")
        assert reporter._bar.tasks[0].percentage == 50
        reporter.stage(trial, "step 30 of 40, accuracy 0.50")
        assert reporter._bar.tasks[0].percentage == 87.5
        reporter.done(trial, trained(450))
        assert reporter._bar.tasks[0].percentage == 100
    assert text.getvalue().splitlines()[-1] == (
        "2/2 copy flex 2k seed 2: 95.7% after 600 steps in 32 s, 90% at step 450"
    )


def test_a_long_training_says_now_and_then_that_it_goes_on_where_there_is_no_bar():
    text = io.StringIO()
    times = iter([0, 29, 30, 30, 59, 60, 60])
    trial = Cell(TrialCase(kind="task", task="copy", variant="flex", workload=Workload(query_length=8)), 0)
    with Reporter([trial], lambda _: 2.0, Console(file=text, width=200), clock=lambda: next(times)) as reporter:
        for step in (10, 20, 30, 40):
            reporter.stage(trial, f"step {step} of 40, accuracy 0.50")
    assert text.getvalue().splitlines() == [
        "1/1 copy flex 8 seed 0: step 20 of 40, accuracy 0.50",
        "1/1 copy flex 8 seed 0: step 40 of 40, accuracy 0.50",
    ]


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (MEASURED, "2.00 ms, peak 3.00 MiB"),
        (trained(), "95.7% after 600 steps in 32 s"),
        (Unsupported(reasons=["a", "b"]), "unsupported: a; b"),
        (Failed(stage="time", message="no"), "failed (time): no"),
    ],
)
def test_an_outcome_in_a_line(outcome, told):
    assert progress.told(outcome) == told
