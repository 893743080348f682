"""How far a run has come: a bar with the time left on a terminal, a line per cell where there is none.

All of it goes to stderr. ``NO_COLOR`` is respected by rich.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import wording
from bench.fidelity.trial import Replaced, Trained, TrialCase, TrialOutcome
from bench.record import Measured, Outcome, Unsupported
from bench.sweep.plan import Cell

_SILENT_SECONDS = 30.0  # longer, and it looks as if nothing went on
_STEP = re.compile(r"step (\d+) of (\d+)")


class Reporter:
    """Tells of cells as they are measured, and of trials as they are made. A context manager.

    ``expected_seconds`` of a cell weigh it in the bar and the time left; a training moves the bar with its steps, and
    where there is no bar it says now and then that it goes on. ``clock`` counts seconds.
    """

    def __init__(
        self,
        cells: list[Cell],
        expected_seconds: Callable[[Cell], float],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._expected_seconds = expected_seconds
        self._count = len(cells)
        self._done = 0
        self._before = 0.0
        self._clock = clock
        self._told_at = clock()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self._console,
            refresh_per_second=2,  # it must not disturb what is measured
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=sum(map(expected_seconds, cells)))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def stage(self, cell: Cell, stage: str) -> None:
        """A cell has come to a stage."""
        match = _STEP.match(stage)
        within = self._expected_seconds(cell) * int(match[1]) / int(match[2]) if match else 0.0
        description = f"{self._done + 1}/{self._count} {name_of(cell)}: {stage}"
        self._bar.update(self._task, description=description, completed=self._before + within)
        if match and not self._console.is_terminal and self._clock() - self._told_at >= _SILENT_SECONDS:
            self._tell(description)

    def _tell(self, line: str) -> None:
        self._told_at = self._clock()
        self._console.print(line, markup=False, soft_wrap=True)

    def done(self, cell: Cell, outcome: Outcome | TrialOutcome) -> None:
        """There is an outcome, and it is on disk."""
        self._done += 1
        self._before += self._expected_seconds(cell)
        self._bar.update(self._task, completed=self._before)
        if self._console.is_terminal and isinstance(outcome, Measured):
            return
        self._tell(f"{self._done}/{self._count} {name_of(cell)}: {told(outcome)}")


def name_of(cell: Cell) -> str:
    """A cell in a few words: what varies in most sweeps."""
    workload = cell.case.workload
    if isinstance(cell.case, TrialCase):
        return f"{cell.case.title} {cell.case.variant} {wording.length(workload.query_length)} seed {workload.seed}"
    lengths = dict.fromkeys((workload.query_length, workload.key_length))
    words = [
        cell.case.variant,
        "×".join(map(wording.length, lengths)),
        workload.mask,
        workload.mode,
        workload.dtype,
    ]
    return " ".join(words) + (f" #{cell.process}" if cell.process else "")


def told(outcome: Outcome | TrialOutcome) -> str:
    """An outcome in a line."""
    match outcome:
        case Trained():
            target = "" if outcome.steps_to_target is None else f", 90% at step {outcome.steps_to_target}"
            return f"{outcome.final_accuracy:.1%} after {outcome.steps} steps in {outcome.seconds:.0f} s{target}"
        case Replaced():
            return f"cosine {outcome.cosine:.3f}, {outcome.neighbours_kept:.0%} of neighbours kept"
        case Measured(seconds=[]):
            return "correct"
        case Measured():
            peak = "" if outcome.peak_bytes is None else f", peak {wording.mebibytes(outcome.peak_bytes)} MiB"
            return f"{wording.duration(statistics.median(outcome.seconds))}{peak}"
        case Unsupported():
            return f"unsupported: {'; '.join(outcome.reasons)}"
        case _:
            status = type(outcome).__struct_config__.tag
            message = outcome.message
            return f"{str(status).replace('_', ' ')} ({outcome.stage}): {message}"
