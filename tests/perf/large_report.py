"""How long a report over a million records takes, and how much memory: ``python -m tests.perf.large_report``.

The records are made up: 32 variants at 8 lengths under 2 masks in 2 modes, in as many processes as it takes, no two of
them with the same figures. They are written into a folder of their own, two gigabytes, which is removed at the end.
A report is drawn by several processes. Their memory is counted together, what they share once: the proportional set
sizes, once a second, or that of the largest at its peak if that is more.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec
import psutil

from bench.record import Record, encode
from tests.bench import runs

RECORDS = 1_000_000
VARIANTS = [f"variant_{number}" for number in range(30)] + ["naive_sdpa", "sdpa_flash"]
LENGTHS = [2**power for power in range(8, 16)]
MASKS, MODES = ("full", "causal"), ("fwd", "fwd_bwd")


def records(count: int) -> list[Record]:
    """One of each case, as many as are needed for ``count``."""
    cases = itertools.product(VARIANTS, LENGTHS, MASKS, MODES)
    return [
        runs.record(variant, runs.measured([length * 1e-6 * (1 + 0.01 * part) for part in range(8)]),
                    length=length, mask=mask, mode=mode)
        for variant, length, mask, mode in itertools.islice(cases, count)
    ]  # fmt: skip


def write(file: Path, count: int) -> None:
    """A run of so many lines."""
    every = records(count)
    with file.open("wb") as out:
        for number in range(count):
            process, place = divmod(number, len(every))
            out.write(encode(_repeated(every[place], process)) + b"\n")


def _repeated(record: Record, process: int) -> Record:
    """What another process might have found."""
    share = 1 + (process * 0.618034 % 1) / 100
    outcome = msgspec.structs.replace(
        record.outcome,
        seconds=[seconds * share for seconds in record.outcome.seconds],
        setup_seconds=record.outcome.setup_seconds * share,
        conditions=record.outcome.conditions | {"load_1min": share, "cpu_mhz": 2900 * share},
    )
    return msgspec.structs.replace(record, outcome=outcome, process=process)


def watched(command: list[str]) -> int:
    """The most bytes that a command and all its children held at once."""
    most = 0
    with psutil.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):  # one of them has just ended
                family = [process, *process.children(recursive=True)]
                most = max(most, sum(one.memory_full_info().pss for one in family))
            time.sleep(1)
    if process.returncode:
        raise click.ClickException(f"the report ended with {process.returncode}")
    return max(most, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)


@click.command()
@click.option("--records", "count", default=RECORDS, show_default=True)
def main(count: int) -> None:
    """Write, report, and tell."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        write(file, count)
        started = time.monotonic()
        peak = watched([sys.executable, "-m", "bench", "report", str(file), "--out", str(Path(folder) / "report")])
        seconds = time.monotonic() - started
    click.echo(f"{count} records: {seconds:.1f} s, {peak / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
