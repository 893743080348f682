"""Under which conditions something was measured: load, stolen time, what others did with the cores, the clock rate."""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import monotonic, process_time
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Watch:
    """A point in time from which conditions are watched."""

    wall_seconds: float
    own_seconds: float
    busy_seconds: float
    stolen_seconds: float

    @staticmethod
    def start() -> Watch:
        times = psutil.cpu_times()
        stolen = getattr(times, "steal", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        return Watch(monotonic(), process_time(), sum(_disjoint(times)) - idle - stolen, stolen)

    def report(self) -> dict[str, float | int | str | None]:
        """Since the start: ``load_1min``; ``steal_share`` of all cores' time; ``others_busy_cores``; ``cpu_mhz``."""
        now = Watch.start()
        wall = now.wall_seconds - self.wall_seconds
        cores = psutil.cpu_count() or 1
        others = now.busy_seconds - self.busy_seconds - (now.own_seconds - self.own_seconds)
        return {
            "load_1min": load(),
            "steal_share": _share(now.stolen_seconds - self.stolen_seconds, wall * cores),
            "others_busy_cores": _share(others, wall),
            "cpu_mhz": cpu_mhz(),
        }


def load() -> float | None:
    """Processes that ran or waited for a core, averaged over a minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def cpu_mhz() -> float | None:
    """The clock rate of the cores now, averaged; None where the system does not say."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        return None
    return round(frequency.current) if frequency is not None and frequency.current else None


def _disjoint(times: Any) -> list[float]:
    """All kinds of time, without those that are part of another kind on Linux."""
    return [value for name, value in times._asdict().items() if name not in ("guest", "guest_nice")]


def _share(part: float, whole: float) -> float | None:
    return round(max(0.0, part) / whole, 4) if whole > 0 else None
