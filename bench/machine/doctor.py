"""Is this machine fit to measure? What is wrong with it, and what to do about it."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from bench.machine.host import usable_cores
from bench.measure import cuda
from bench.measure.conditions import load

if TYPE_CHECKING:
    from variants._contract import Variant, Workload

State = Literal["ok", "warn", "unfit", "unknown"]

_LISTENING_SECONDS = 1.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

# From here on: worth a warning, and no machine to measure on.
_BUSY_CORES = (0.1, 0.5)
_LOAD_PER_CORE = (0.5, 1.0)
_STEAL = (0.005, 0.02)
_DEVIATION = (0.02, 0.05)
_GPU_BUSY_PERCENT = (1, 10)

_SYSTEM = Path("/sys")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``advice`` where something is to be done."""

    name: str
    value: str
    state: State = "ok"
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Runnable:
    """Whether a variant can run here; ``obstacles`` are its reasons why not."""

    name: str
    obstacles: tuple[str, ...]


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


def is_fit(findings: Iterable[Finding]) -> bool:
    """Whether nothing found forbids measuring."""
    return all(finding.state != "unfit" for finding in findings)


def listen(system: Path = _SYSTEM) -> list[Finding]:
    """What can be seen within a second, without running anything."""
    throttled = throttle_counts(system)
    before, start = psutil.cpu_times(), time.monotonic()
    busy_percent = psutil.cpu_percent(interval=_LISTENING_SECONDS)
    after, seconds = psutil.cpu_times(), time.monotonic() - start
    cores = psutil.cpu_count() or 1
    stolen = (getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)) / (seconds * cores)
    return [
        busy(busy_percent / 100 * cores),
        loaded(load(), cores),
        steal(stolen),
        governor(system),
        pinning(os.environ, usable_cores(), cores),
        quota(system, usable_cores()),
        throttling(throttled, throttle_counts(system)),
        thermal(_temperatures()),
    ]


def busy(cores: float) -> Finding:
    """Cores that others use while we sleep."""
    state = _graded(cores, _BUSY_CORES)
    return Finding("other work", f"{cores:.2f} cores busy", state, _unless_ok(state, "stop what else runs"))


def loaded(load_1min: float | None, cores: int) -> Finding:
    """Processes that run or wait for a core, per core."""
    if load_1min is None:
        return Finding("load", "not told by this system", "unknown")
    state = _graded(load_1min / cores, _LOAD_PER_CORE)
    return Finding("load", f"{load_1min:.2f} on {cores} cores", state, _unless_ok(state, "wait until it has gone down"))


def steal(share: float) -> Finding:
    """Time that the hypervisor gave to other machines."""
    state = _graded(share, _STEAL)
    return Finding("steal", f"{share:.1%}", state, _unless_ok(state, "use a machine with cores of its own"))


def governor(system: Path) -> Finding:
    """Whether the cores keep their clock rate up."""
    files = sorted(system.glob("devices/system/cpu/cpu*/cpufreq/scaling_governor"))
    names = sorted({file.read_text().strip() for file in files})
    if not names:
        return Finding("governor", "not told by this system", "unknown")
    if names == ["performance"]:
        return Finding("governor", "performance")
    return Finding("governor", ", ".join(names), "warn", "cpupower frequency-set --governor performance")


def pinning(environment: Any, usable: int, cores: int) -> Finding:
    """Cores that we may use, and variables that steer threads behind our back."""
    named = [f"{name}={environment[name]}" for name in _THREAD_VARIABLES if environment.get(name)]
    value = ", ".join([f"{usable} of {cores} cores", *named])
    limit = environment.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and int(limit) > usable:
        return Finding("threads", value, "unfit", f"set OMP_NUM_THREADS to {usable} or less")
    return Finding("threads", value)


def quota(system: Path, usable: int) -> Finding:
    """The control group's limit on processor time: beyond it, processes stand still for a while."""
    try:
        allowed, period = (system / "fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return Finding("quota", "none")
    if allowed == "max":
        return Finding("quota", "none")
    cores = int(allowed) / int(period)
    if cores >= usable:
        return Finding("quota", f"{cores:g} cores")
    return Finding(
        "quota", f"{cores:g} of {usable} cores", "warn", f"measure with at most {max(1, int(cores))} threads"
    )


def throttle_counts(system: Path) -> int | None:
    """How often cores were slowed down for heat, or stopped for their quota; None where nobody counts."""
    counters = [*system.glob("devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")]
    counts = [int(file.read_text()) for file in counters]
    try:
        lines = (system / "fs/cgroup/cpu.stat").read_text().splitlines()
        counts += [int(line.split()[1]) for line in lines if line.startswith("nr_throttled")]
    except OSError:
        pass
    return sum(counts) if counts else None


def throttling(before: int | None, after: int | None) -> Finding:
    """From two counts a second apart."""
    if before is None or after is None:
        return Finding("CPU throttling", "not told by this system", "unknown")
    if after > before:
        return Finding("CPU throttling", f"{after - before} times in a second", "unfit", "cool it, or lift its quota")
    return Finding("CPU throttling", "none now")


def thermal(temperatures: Sequence[tuple[float, float | None]]) -> Finding:
    """The hottest of ``(now, high)`` in °C."""
    if not temperatures:
        return Finding("CPU temperature", "not told by this system", "unknown")
    now, high = max(temperatures)
    if high is not None and now >= high:
        return Finding("CPU temperature", f"{now:.0f} °C, {high:.0f} °C is high", "unfit", "let it cool down")
    return Finding("CPU temperature", f"{now:.0f} °C")


def gpu(nvml: Any, handle: Any, own_process: int | None = None) -> list[Finding]:
    """One GPU as its driver sees it; ``handle`` is the driver's, None where it does not know the device."""
    if handle is None:
        return [Finding("GPU", "not known to its driver", "unknown")]
    own_process = os.getpid() if own_process is None else own_process
    others = [
        process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if process.pid != own_process
    ]
    reasons = cuda.throttle_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    disturbing = cuda.DISTURBING.intersection(reasons)
    celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    slowdown = nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    used_percent = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    highest = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    hot, used = celsius >= slowdown, _graded(used_percent, _GPU_BUSY_PERCENT)
    return [
        Finding(
            "GPU processes",
            f"{len(others)} others",
            "unfit" if others else "ok",
            "stop the other processes on this GPU" if others else "",
        ),
        Finding("GPU in use", f"{used_percent}%", used, _unless_ok(used, "wait until it is idle")),
        Finding(
            "GPU throttling",
            ", ".join(reasons) or "none",
            "unfit" if disturbing else "ok",
            "cool it, or look at its power supply" if disturbing else "",
        ),
        Finding(
            "GPU temperature",
            f"{celsius} °C, slows down at {slowdown} °C",
            "unfit" if hot else "ok",
            "let it cool down" if hot else "",
        ),
        Finding("GPU clock", f"{clock} of {highest} MHz"),
        Finding("GPU driver", str(nvml.nvmlSystemGetDriverVersion())),
    ]


def noisy(floor: NoiseFloor | None) -> Finding:
    """Identical code in several processes."""
    if floor is None:
        return Finding("noise floor", "not measured", "unknown")
    between, most = f"{floor.deviation:.1%} between processes", f"{floor.largest_difference:.1%}"
    value = f"{between}, at most {most}, of {len(floor.medians)}"
    state = _graded(floor.deviation, _DEVIATION)
    return Finding("noise floor", value, state, _unless_ok(state, "measure more processes, or on a quieter machine"))


def runnable(variants: Iterable[Variant], workload: Workload) -> list[Runnable]:
    """Which variants have no obstacle to a plain workload here."""
    return [Runnable(variant.name, _obstacles(variant, workload)) for variant in variants]


def _obstacles(variant: Variant, workload: Workload) -> tuple[str, ...]:
    try:
        return tuple(variant.obstacles(workload, variant.parameters()))
    except Exception as error:  # noqa: BLE001  # a variant from outside may do anything; the doctor goes on
        return (f"asking for its obstacles raised {type(error).__name__}: {error}",)


def _temperatures() -> list[tuple[float, float | None]]:
    if not hasattr(psutil, "sensors_temperatures"):  # only where the system tells
        return []
    return [(sensor.current, sensor.high) for sensors in psutil.sensors_temperatures().values() for sensor in sensors]


def _graded(value: float, limits: tuple[float, float]) -> State:
    warn, unfit = limits
    if value >= unfit:
        return "unfit"
    return "warn" if value >= warn else "ok"


def _unless_ok(state: State, advice: str) -> str:
    return "" if state == "ok" else advice
