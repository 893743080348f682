"""How long a report over a million records takes, and how much memory: ``python -m tests.perf.large_report``.

The records are made up: 32 variants at 8 lengths under 2 masks in 2 modes, in as many processes as it takes. They are
written into a folder of their own, a gigabyte and a half, which is removed at the end.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec

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
            out.write(encode(msgspec.structs.replace(every[place], process=process)) + b"\n")


@click.command()
@click.option("--records", "count", default=RECORDS, show_default=True)
def main(count: int) -> None:
    """Write, report, and tell."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        write(file, count)
        started = time.monotonic()
        command = [sys.executable, "-m", "bench", "report", str(file), "--out", str(Path(folder) / "report")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    click.echo(f"{count} records: {seconds:.1f} s, {peak / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
