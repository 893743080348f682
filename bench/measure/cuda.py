"""All that measuring asks of CUDA, in one thin layer, so that every line above it runs in tests without a GPU.

:class:`TorchRuntime` is the real one. It takes the modules that it calls, so that its own lines run in tests, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Protocol

# What NVML calls the reasons for which a GPU runs slower than it might; idling is none.
_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
# A power cap is how a GPU works under load; the others are accidents of the moment.
DISTURBING = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})


@dataclass(frozen=True, slots=True)
class Health:
    """Clocks in MHz, temperature in °C, and the reasons for which the clocks are lower than they might be."""

    sm_mhz: int
    memory_mhz: int
    celsius: int
    throttling: tuple[str, ...] = ()


class Event(Protocol):
    """A point in a stream."""

    def record(self) -> object: ...

    def query(self) -> bool:
        """Whether the stream has passed it."""
        ...

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds until ``end``."""
        ...


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> object: ...


class Runtime(Protocol):
    """One device with one stream."""

    def event(self) -> Event: ...

    def synchronize(self) -> None: ...

    def hold(self, cycles: int) -> None:
        """Keep the stream busy for so many clock cycles, so that launches queue up behind it."""
        ...

    def l2_bytes(self) -> int: ...

    def scratch(self, size: int) -> Any:
        """A buffer of ``size`` bytes with a method ``zero_``."""
        ...

    def capture(self, work: Callable[[], object]) -> Graph:
        """Record what ``work`` launches. Raises RuntimeError for work that cannot be captured."""
        ...

    def allocated_bytes(self) -> int: ...

    def reserved_bytes(self) -> int: ...

    def peak_allocated_bytes(self) -> int: ...

    def peak_reserved_bytes(self) -> int: ...

    def reset_peaks(self) -> None:
        """Give cached memory back and start peaks from what is allocated now."""
        ...

    def free_bytes(self) -> int:
        """What the device and the allocator's cache could still give."""
        ...

    def health(self) -> Health | None:
        """What the driver says now; None where it does not say."""
        ...


class TorchRuntime:
    """The current device through ``torch.cuda``, and the driver through ``pynvml`` where there is one."""

    def __init__(self, cuda: Any, nvml: ModuleType | None) -> None:
        self._cuda = cuda
        self._nvml = nvml
        self._handle = None if nvml is None else nvml_handle(cuda, nvml)

    def event(self) -> Event:
        event: Event = self._cuda.Event(enable_timing=True)
        return event

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def hold(self, cycles: int) -> None:
        self._cuda._sleep(cycles)  # noqa: SLF001  # torch has no public name for its spinning kernel

    def l2_bytes(self) -> int:
        return int(self._cuda.get_device_properties(self._cuda.current_device()).L2_cache_size)

    def scratch(self, size: int) -> Any:
        import torch

        return torch.empty(size, dtype=torch.uint8, device=self._cuda.current_device())

    def capture(self, work: Callable[[], object]) -> Graph:
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            work()
        captured: Graph = graph
        return captured

    def allocated_bytes(self) -> int:
        return int(self._cuda.memory_allocated())

    def reserved_bytes(self) -> int:
        return int(self._cuda.memory_reserved())

    def peak_allocated_bytes(self) -> int:
        return int(self._cuda.max_memory_allocated())

    def peak_reserved_bytes(self) -> int:
        return int(self._cuda.max_memory_reserved())

    def reset_peaks(self) -> None:
        self._cuda.synchronize()
        self._cuda.empty_cache()
        self._cuda.reset_peak_memory_stats()

    def free_bytes(self) -> int:
        free, _ = self._cuda.mem_get_info()
        return int(free) + self.reserved_bytes() - self.allocated_bytes()

    def health(self) -> Health | None:
        nvml, handle = self._nvml, self._handle
        if nvml is None or handle is None:
            return None
        try:
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            return Health(
                sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                memory_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                celsius=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                throttling=throttle_reasons(reasons),
            )
        except nvml.NVMLError:  # a virtual GPU, say, that keeps its clocks to itself
            return None


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Names of the reasons in NVML's bit mask."""
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


@cache
def runtime() -> Runtime:
    """The runtime of this process's current device."""
    import torch

    return TorchRuntime(torch.cuda, nvml())


def nvml() -> ModuleType | None:
    """NVML, initialised; None where there is no driver or no binding to it."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    module: ModuleType = pynvml
    return module


def nvml_handle(cuda: Any, nvml: ModuleType) -> Any:
    """NVML's handle of the current device, by its UUID: NVML does not know of CUDA_VISIBLE_DEVICES."""
    uuid = str(cuda.get_device_properties(cuda.current_device()).uuid)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except nvml.NVMLError:
        return None
