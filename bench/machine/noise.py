"""How much identical code differs between processes here: the floor under every difference that can be seen.

``python -m bench.machine.noise DEVICE THREADS SECONDS`` is one such process: it times one attention and prints its
samples.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WORKLOAD_LENGTH = 512
PROCESS_SECONDS = 1.0
DEADLINE_SECONDS = 40.0

_FEWEST = 2
_LONGEST_PROCESS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Medians of identical code, one a process, in seconds. Shares are of the median."""

    medians: list[float]

    @property
    def deviation(self) -> float:
        """Standard deviation between processes."""
        return statistics.stdev(map(math.log, self.medians))

    @property
    def largest_difference(self) -> float:
        """Between the quickest and the slowest process."""
        return max(self.medians) / min(self.medians) - 1


def noise_floor(
    *,
    device: str,
    threads: int,
    processes: int,
    run: Callable[[Sequence[str]], str] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> NoiseFloor | None:
    """One process after the other; no further one after 40 seconds. None with fewer than two results."""
    run = run or _run
    deadline = now() + DEADLINE_SECONDS
    medians: list[float] = []
    for _ in range(processes):
        if now() >= deadline:
            break
        samples = json.loads(run([device, str(threads), str(PROCESS_SECONDS)]))
        medians.append(statistics.median(samples))
    return NoiseFloor(medians) if len(medians) >= _FEWEST else None


def _run(arguments: Sequence[str]) -> str:
    done = subprocess.run(  # noqa: S603  # our own module
        [sys.executable, "-m", __name__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_LONGEST_PROCESS_SECONDS,
    )
    return done.stdout


def samples(device: str, threads: int, budget_seconds: float) -> list[float]:
    """Seconds per block of torch's own attention, as the sweep times it."""
    import torch

    from bench.measure import cuda
    from bench.measure.call import Operands, scatterer
    from bench.measure.timing import time_on_cpu, time_on_cuda
    from variants._contract import Workload

    torch.set_num_threads(threads)
    workload = Workload(query_length=WORKLOAD_LENGTH, key_length=WORKLOAD_LENGTH, device=device)
    scatter = scatterer(torch.nn.functional.scaled_dot_product_attention, Operands.of(workload), "fwd")
    if device.startswith("cuda"):
        return time_on_cuda(scatter, cuda.runtime(), call_seconds=0, budget_seconds=budget_seconds).seconds
    return time_on_cpu(scatter, call_seconds=0, budget_seconds=budget_seconds).seconds


if __name__ == "__main__":
    _, device_, threads_, budget_ = sys.argv
    sys.stdout.write(json.dumps(samples(device_, int(threads_), float(budget_))))
