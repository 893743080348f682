"""How well four ways to time a call agree with a plain loop, and how long each takes to a 1% interval one can trust.

``python -m tests.perf.timers`` prints two tables in Markdown; it wants a machine that does nothing else for fifteen
minutes. Everything is interleaved, and done in several fresh processes: a figure that another process does not
confirm is not known to 1%, however often one process repeats it. So the interval that is trusted is the one over
processes, each of which costs its start and its reading, by the way's own rule of when that is enough.

The truth of a call is a plain loop, ``for …: start; call(); stop``, over as many calls as fill 10 ms and after one that
is not timed, on tensors that are allocated anew for each loop: the median of a loop, and of all loops in all processes.
The mean of a loop stands beside it: it counts what interrupts a call, which belongs to the machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from random import Random
from types import SimpleNamespace

import click
import msgspec
import psutil
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch.utils.benchmark import Timer

import variants
from bench import stats
from bench.measure.call import Call, Operands, load_backward, scatterer
from bench.measure.clock import Sample, collect, half_width
from bench.measure.clock_cpu import ALONE, CpuClock
from bench.sweep.suite import LEAST_REPLICATE_SECONDS
from bench.sweep.supervisor import ALLOCATOR
from variants._contract import Mode, Workload

WANTED = 0.01
LOOPS = 12
LOOPS_BETWEEN = 5
WARM_UP = 4
PROCESSES = 20
MOST_PROCESSES, DRAWS = 100, 300
SHORT_SECONDS = 1e-3

Scatter = Callable[[], Call]


@dataclass(frozen=True, slots=True)
class Trace:
    """Samples of one reading, in seconds per call, and when each was known, in seconds since the reading began."""

    seconds: Sequence[float]
    known_at: Sequence[float]
    reading: float

    def to_interval(self, half: float, fewest: int = 6) -> int | None:
        """How many samples it took until the 95% interval of their median was within ±``half``."""
        counts = range(fewest, len(self.seconds) + 1)
        return next((count for count in counts if half_width(self.seconds[:count]) <= half), None)


@dataclass(slots=True)
class Subject:
    """One call, by many readings."""

    name: str
    scatter: Scatter
    seconds: float
    differentiates: bool
    loops: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    traces: dict[str, Trace] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """How many fill a block."""
        return max(1, round(ALONE.seconds / self.seconds))


# The ways to time a call.


def ours(subject: Subject) -> Trace:
    """The clock of the suite, as a sweep of ten processes or more uses it."""
    clock = _Recording(CpuClock(subject.scatter, call_seconds=subject.seconds))
    series = collect(clock, budget_seconds=LEAST_REPLICATE_SECONDS, call_seconds=subject.seconds)
    kept = clock.samples[-len(series.seconds) :]
    return Trace([seconds for seconds, _ in kept], [at for _, at in kept], statistics.median(series.seconds))


@dataclass(slots=True)
class _Recording:
    """A clock that notes when its samples were known."""

    clock: CpuClock
    warm_up_seconds: float = 0.0
    start: float = field(default_factory=time.perf_counter)
    samples: list[tuple[float, float]] = field(default_factory=list)

    def sample(self) -> Sample:
        sample = self.clock.sample()
        self.samples.append((sample.seconds, time.perf_counter() - self.start))
        return sample

    def now(self) -> float:
        return self.clock.now()


def torch_timer(subject: Subject) -> Trace:
    """``torch.utils.benchmark.Timer(…).blocked_autorange`` with its own defaults; its median."""
    call = _plain(subject.scatter())
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    start = time.perf_counter()
    measured = timer.blocked_autorange()
    spent = time.perf_counter() - start
    return _reconstructed(measured.times, measured.number_per_run, spent, measured.median)


def pytest_benchmark(subject: Subject) -> Trace:
    """The fixture of pytest-benchmark with its own defaults; its median."""
    fixture = BenchmarkFixture(
        SimpleNamespace(name="call", nodeid="call"),
        disable_gc=False,
        timer=SimpleNamespace(target=time.perf_counter),
        min_rounds=5,
        min_time=5e-6,
        max_time=1.0,
        precision=None,
        confidence=None,
        warmup=False,
        warmup_iterations=100_000,
        calibration_precision=10,
        add_stats=lambda _: None,
        logger=SimpleNamespace(debug=lambda *_, **__: None),
        warner=None,
        disabled=False,
        cprofile=False,
        cprofile_loops=None,
        cprofile_dump=None,
    )
    call = _plain(subject.scatter())
    start = time.perf_counter()
    fixture(call)
    spent = time.perf_counter() - start
    seconds = list(fixture.stats.stats.data)
    return _reconstructed(seconds, fixture.stats.iterations, spent, statistics.median(seconds))


def do_bench(subject: Subject) -> Trace:
    """What Triton's ``do_bench`` is described to do: warm up 25 ms, call for 100 ms, all with cold caches; the mean."""
    call = _plain(subject.scatter())
    cache = torch.empty(64 * 1024 * 1024, dtype=torch.int32)
    start = time.perf_counter()
    guessed = statistics.mean(_after_clearing(call, cache) for _ in range(5))
    for _ in range(max(1, int(0.025 / guessed))):
        call()
    seconds = [_after_clearing(call, cache) for _ in range(max(1, int(0.1 / guessed)))]
    spent = time.perf_counter() - start
    share = [spent * (index + 1) / len(seconds) for index in range(len(seconds))]
    return Trace(seconds, share, statistics.mean(seconds))


def _after_clearing(call: Callable[[], object], cache: torch.Tensor) -> float:
    cache.zero_()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


WAYS = {
    "attention-bench": ours,
    "torch.utils.benchmark": torch_timer,
    "pytest-benchmark": pytest_benchmark,
    "do_bench's method": do_bench,
}


def _plain(call: Call) -> Callable[[], object]:
    """The call as somebody would write it down who has never heard of us, under ``torch.no_grad`` for a forward."""
    query, key, value = call.operands.inputs
    attend, upstream = call.attend, call.operands.upstream

    def both() -> object:
        return torch.autograd.grad(attend(query, key, value), (query, key, value), upstream, allow_unused=True)

    return (lambda: attend(query, key, value)) if call.mode == "fwd" else both


def _reconstructed(seconds: Sequence[float], calls: int, spent: float, reading: float) -> Trace:
    """A trace from samples of so many calls, of which only the end is known: what is not calls came before them."""
    before = max(0.0, spent - calls * sum(seconds))
    return Trace(seconds, [before + at for at in accumulate(calls * each for each in seconds)], reading)


# What is timed.


def subjects() -> Iterator[Subject]:
    """Exact and approximate, from a tenth of a millisecond to tens of them, forward and training."""
    for name, length, mode in (
        ("linear_attention", 128, "fwd"),
        ("sdpa_flash", 128, "fwd"),
        ("naive_sdpa", 128, "fwd_bwd"),
        ("linformer", 256, "fwd"),
        ("sdpa_flash", 256, "fwd_bwd"),
        ("linear_attention", 512, "fwd_bwd"),
        ("sdpa_flash", 512, "fwd"),
        ("naive_sdpa", 512, "fwd"),
        ("bigbird", 1024, "fwd"),
        ("linformer", 2048, "fwd_bwd"),
    ):
        yield _subject(name, length, mode)


def _subject(name: str, length: int, mode: Mode) -> Subject:
    variant = variants.find()[name]
    workload = Workload(heads=4, kv_heads=4, query_length=length, key_length=length, mode=mode)
    parameters = variant.parameters()
    assert not variant.obstacles(workload, parameters), name
    scatter = scatterer(variant.build(workload, parameters), Operands.of(workload), mode)
    call = _plain(scatter())
    with torch.set_grad_enabled(mode != "fwd"):
        call()
        seconds = min(_loop(call, 5))
    return Subject(f"{name} {length} {mode}", scatter, seconds, differentiates=mode != "fwd")


# The comparison.


def observe(subject: Subject, order: Random) -> None:
    """Our blocks and plain loops in turn, then every way in a random order, with plain loops between."""
    clock = CpuClock(subject.scatter, call_seconds=subject.seconds)
    for index in range(LOOPS + WARM_UP):
        turns = [partial(plain_loop, subject), lambda: subject.blocks.append(clock.sample().seconds)]
        for turn in turns if index % 2 else reversed(turns):
            turn()
    for series in (subject.loops, subject.means, subject.blocks):
        del series[:WARM_UP]
    for name in order.sample(sorted(WAYS), len(WAYS)):
        subject.traces[name] = WAYS[name](subject)
        for _ in range(LOOPS_BETWEEN):
            plain_loop(subject)


def plain_loop(subject: Subject) -> None:
    """A loop on freshly allocated tensors, after one call that is not timed."""
    call = _plain(subject.scatter())
    call()
    seconds = _loop(call, subject.calls)
    subject.loops.append(statistics.median(seconds))
    subject.means.append(statistics.mean(seconds))


def _loop(call: Callable[[], object], calls: int) -> list[float]:
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


# What it comes to.


class Reading(msgspec.Struct):
    """What one way said in one process, in seconds.

    Its figure and how long it took; when its own interval was within 1%, and that interval.
    """

    seconds: float
    took: float
    waited: float | None = None
    low: float | None = None
    high: float | None = None

    @staticmethod
    def of(trace: Trace) -> Reading:
        count = trace.to_interval(WANTED)
        reading = Reading(trace.reading, trace.known_at[-1])
        if count is not None:
            reading.waited = trace.known_at[count - 1]
            reading.low, reading.high = stats.median_interval(trace.seconds[:count])
        return reading


class Observation(msgspec.Struct):
    """One call in one process, which had taken so many seconds to start."""

    name: str
    start: float
    loops: list[float]
    means: list[float]
    blocks: list[float]
    readings: dict[str, Reading]


@dataclass(frozen=True, slots=True)
class Timed:
    """One call in all processes."""

    observations: Sequence[Observation]

    @property
    def name(self) -> str:
        return self.observations[0].name

    @property
    def truth(self) -> float:
        return statistics.median(seconds for seen in self.observations for seconds in seen.loops)

    @property
    def mean(self) -> float:
        return statistics.median(
            mean / loop for seen in self.observations for mean, loop in zip(seen.means, seen.loops, strict=True)
        )

    @property
    def reading(self) -> float:
        """Our blocks over the loops they took turns with, in the median process."""
        return statistics.median(
            statistics.median(seen.blocks) / statistics.median(seen.loops[:LOOPS]) for seen in self.observations
        )

    def of(self, way: str) -> list[Reading]:
        return [seen.readings[way] for seen in self.observations]

    def spread(self, way: str) -> float:
        """Standard deviation between processes of what a way reads, as a share."""
        readings = [reading.seconds for reading in self.of(way)]
        return statistics.stdev(readings) / statistics.mean(readings)

    def processes(self, way: str) -> float:
        """How many it takes on average until the interval over processes, as reports have it, is within ±1%.

        By drawing again from what a way read in each process.
        """
        readings, draw = [reading.seconds for reading in self.of(way)], Random(0)  # noqa: S311  # no secret
        return statistics.mean(_needed([draw.choice(readings) for _ in range(MOST_PROCESSES)]) for _ in range(DRAWS))

    def trusted_after(self, way: str) -> float:
        """Seconds that so many processes take, one after the other: each has to start, and to read."""
        cost = statistics.median(seen.start + seen.readings[way].took for seen in self.observations)
        return self.processes(way) * cost


def _needed(readings: Sequence[float]) -> int:
    counts = range(2, len(readings))
    return next((n for n in counts if (stats.estimate(readings[:n]).half_width or 1) <= WANTED), len(readings))


def against_loops(calls: Sequence[Timed]) -> str:
    """What a plain loop reads of each call; its mean, and our reading, over that."""
    lines = ["| call | plain loop | mean of the loop | reading |", "|---|---:|---:|---:|"]
    lines += [f"| {call.name} | {_shown(call.truth)} | {call.mean:.3f} | {call.reading:.3f} |" for call in calls]
    for title, chosen in (
        ("over 1 ms", [call.reading for call in calls if call.truth > SHORT_SECONDS]),
        ("under 1 ms", [call.reading for call in calls if call.truth <= SHORT_SECONDS]),
    ):
        worst = max(chosen, key=lambda ratio: abs(ratio - 1))
        lines.append(f"| **{len(chosen)} {title}** | | | **{statistics.median(chosen):.3f}**, furthest {worst:.3f} |")
    return "\n".join(lines)


def by_way(calls: Sequence[Timed]) -> str:
    """What each way reads and how long it takes, over calls and processes."""
    lines = [
        "| way | reading over loop | takes | its own ±1% after | holds the loop | SD between | processes | to ±1% |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for way in WAYS:
        pairs = [(call.truth, reading) for call in calls for reading in call.of(way)]
        there = [reading.waited for _, reading in pairs if reading.waited is not None]
        held = sum(reading.low <= truth <= reading.high for truth, reading in pairs if reading.waited is not None)
        cells = (
            way,
            f"{statistics.median(reading.seconds / truth for truth, reading in pairs):.3f}",
            _shown(statistics.median(reading.took for _, reading in pairs)),
            f"{_shown(statistics.median(there)) if there else '–'} ({len(there) / len(pairs):.0%})",
            f"{held / max(1, len(there)):.0%}",
            f"{statistics.median(call.spread(way) for call in calls):.1%}",
            f"{statistics.geometric_mean(call.processes(way) for call in calls):.1f}",
            _shown(statistics.geometric_mean(call.trusted_after(way) for call in calls)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def in_this_process() -> list[Observation]:
    """Every call once."""
    torch.set_num_threads(1)
    load_backward()
    start, seen = time.time() - psutil.Process().create_time(), []
    for subject in subjects():
        with torch.set_grad_enabled(subject.differentiates):
            observe(subject, Random())  # noqa: S311  # no secret
        readings = {name: Reading.of(trace) for name, trace in subject.traces.items()}
        seen.append(Observation(subject.name, start, subject.loops, subject.means, subject.blocks, readings))
    return seen


def main() -> None:
    """Measure in fresh processes, say how far it is, and print the tables."""
    if sys.argv[1:] == ["once"]:
        sys.stdout.buffer.write(msgspec.json.encode(in_this_process()))
        return
    command = [sys.executable, "-m", "tests.perf.timers", "once"]
    processes = []
    for index in range(PROCESSES):
        click.echo(f"process {index + 1} of {PROCESSES}", err=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, **ALLOCATOR})
        processes.append(msgspec.json.decode(done.stdout, type=list[Observation]))
    calls = [Timed(observations) for observations in zip(*processes, strict=True)]
    click.echo(f"{against_loops(calls)}\n\n{by_way(calls)}")


if __name__ == "__main__":
    main()
