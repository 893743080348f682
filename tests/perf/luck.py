"""Whether what a call takes depends on the process it runs in: ``python -m tests.perf.luck``.

Ten processes are there at once and take turns on ten calls, so that what the machine does in the course of time is
common to all of them. Each has two clocks: that of the suite, which lays the operands out anew between blocks, and one
that keeps its first layout, as a plain loop does. A process whose layout is lucky stays lucky: then the medians of
processes differ by more than the noise within them explains. It wants a machine that does nothing else for six minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from random import Random

import click
import numpy as np
import torch

from bench.measure.call import Call, load_backward
from bench.measure.clock_cpu import CpuClock
from bench.sweep.supervisor import ALLOCATOR
from tests.perf.timers import subjects

PROCESSES, ROUNDS = 10, 9
TURN_SECONDS, WARM_UP_BLOCKS = 0.15, 3
CLOCKS = ("new layouts", "one layout")


def _kept(scatter: Callable[[], Call]) -> Callable[[], Call]:
    call = scatter()
    return lambda: call


def take_turns() -> None:
    """In a process of its own: for each line with the number of a call and a clock, the median of some blocks."""
    torch.set_num_threads(1)
    load_backward()
    calls = [*subjects()]
    clocks = [(CpuClock(call.scatter, call.seconds), CpuClock(_kept(call.scatter), call.seconds)) for call in calls]
    click.echo(json.dumps([call.name for call in calls]))
    for line in sys.stdin:
        index, which = json.loads(line)
        clock, start = clocks[index][which], time.perf_counter()
        with torch.set_grad_enabled(calls[index].differentiates):
            blocks: list[float] = []
            while len(blocks) <= WARM_UP_BLOCKS or time.perf_counter() - start < TURN_SECONDS:
                blocks.append(clock.sample().seconds)
        click.echo(statistics.median(blocks[WARM_UP_BLOCKS:]))


class Process:
    """Another one of these."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.perf.luck", "turns"]
        self._pipes = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **ALLOCATOR}
        )
        self.calls = json.loads(self._answer())

    def turn(self, call: int, clock: int) -> float:
        """Seconds."""
        self._pipes.stdin.write(json.dumps([call, clock]) + "\n")
        self._pipes.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        return self._pipes.stdout.readline()

    def end(self) -> None:
        """Wait for it."""
        self._pipes.communicate()


def spread(seconds: np.ndarray) -> tuple[float, float]:
    """Of ``(processes, rounds)``: standard deviation between processes, and what noise alone makes of it, as shares.

    A round's median is what the machine did then. 1.25 is the standard error of a median over that of a mean.
    """
    logs = np.log(seconds)
    logs -= np.median(logs, axis=0)
    medians = np.median(logs, axis=1, keepdims=True)
    noise = 1.4826 * float(np.median(np.abs(logs - medians)))
    return float(np.std(medians, ddof=1)), 1.25 * noise / logs.shape[1] ** 0.5


def table(names: list[str], seconds: dict[tuple[int, int], np.ndarray]) -> str:
    """A line a call, and the geometric mean."""
    lines = ["| call | new layouts | by noise alone | one layout | by noise alone |", "|---|---:|---:|---:|---:|"]
    rows = [[*spread(seconds[call, 0]), *spread(seconds[call, 1])] for call in range(len(names))]
    rows.append([statistics.geometric_mean(column) for column in zip(*rows, strict=True)])
    for name, row in zip([*names, "**geometric mean**"], rows, strict=True):
        lines.append(f"| {name} | {' | '.join(f'{share:.2%}' for share in row)} |")
    return "\n".join(lines)


def main() -> None:
    """Take turns, say how far it is, and print the table."""
    if sys.argv[1:] == ["turns"]:
        take_turns()
        return
    processes, draw = [Process() for _ in range(PROCESSES)], Random(1)  # noqa: S311  # no secret
    names = processes[0].calls
    seconds = defaultdict(lambda: np.empty((PROCESSES, ROUNDS)))
    for turn in range(ROUNDS):
        click.echo(f"round {turn + 1} of {ROUNDS}", err=True)
        for call in range(len(names)):
            for clock in draw.sample(range(len(CLOCKS)), len(CLOCKS)):
                for place in draw.sample(range(PROCESSES), PROCESSES):
                    seconds[call, clock][place, turn] = processes[place].turn(call, clock)
    for process in processes:
        process.end()
    click.echo(table(names, seconds))


if __name__ == "__main__":
    main()
