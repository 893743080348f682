"""A GPU that exists on paper only: one stream, a host and a device clock, an allocator, a driver."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

CYCLES_PER_SECOND = 2_000_000_000
LAUNCH_SECONDS = 5e-6


@dataclass
class Stream:
    """Work queues up on the device; the host goes on after the cost of a launch, until it waits or the queue is full
    (``depth`` launches).
    """

    depth: int = 1024
    host: float = 0.0
    device: float = 0.0
    log: list = field(default_factory=list)
    captured: list | None = None
    ends: deque = field(default_factory=deque)

    def launch(self, name, seconds):
        """Queue ``seconds`` of device work; it starts when what came before is done, and not before it is launched."""
        if self.captured is not None:
            self.captured.append(seconds)
            return
        self.host += LAUNCH_SECONDS
        while self.ends and self.ends[0] <= self.host:
            self.ends.popleft()
        if len(self.ends) >= self.depth:
            self.host = max(self.host, self.ends.popleft())
        self.device = max(self.device, self.host) + seconds
        self.ends.append(self.device)
        self.log.append(name)

    def wait(self):
        self.host = max(self.host, self.device)
        self.log.append("wait")


class Event:
    def __init__(self, stream):
        self._stream = stream
        self.at = None

    def record(self):
        self.at = max(self._stream.device, self._stream.host)

    def query(self):
        return self._stream.host >= self.at

    def elapsed_time(self, end):
        assert self._stream.host >= max(self.at, end.at), "asked before the device had passed it"
        return (end.at - self.at) * 1e3


class Allocator:
    """What ``torch.cuda`` tells of memory; set by tests."""

    def __init__(self):
        self.allocated = self.reserved = 0
        self.peak = self.peak_reserved = 0

    def take(self, size):
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak, self.peak_reserved = max(self.peak, self.allocated), max(self.peak_reserved, self.reserved)

    def give(self, size):
        self.allocated -= size


class FakeCuda:
    """Stands in for the module ``torch.cuda``."""

    def __init__(self, *, l2_bytes=50_000_000, capturable=True):
        self.stream = Stream()
        self.memory = Allocator()
        self.capturable = capturable
        self._properties = SimpleNamespace(L2_cache_size=l2_bytes, uuid="1234-abcd")

    def now(self):
        return self.stream.host

    def Event(self, *, enable_timing):  # noqa: N802  # torch's name
        assert enable_timing
        return Event(self.stream)

    def synchronize(self):
        self.stream.wait()

    def _sleep(self, cycles):
        self.stream.launch("hold", cycles / CYCLES_PER_SECOND)

    def current_device(self):
        return "cpu"  # where scratch memory can be had in tests

    def get_device_properties(self, _device):
        return self._properties

    def CUDAGraph(self):  # noqa: N802  # torch's name
        return Graph(self.stream)

    @contextmanager
    def graph(self, graph):
        if not self.capturable:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
        self.stream.captured = []
        yield
        graph.seconds, self.stream.captured = sum(self.stream.captured), None

    def memory_allocated(self):
        return self.memory.allocated

    def memory_reserved(self):
        return self.memory.reserved

    def max_memory_allocated(self):
        return self.memory.peak

    def max_memory_reserved(self):
        return self.memory.peak_reserved

    def empty_cache(self):
        self.memory.reserved = self.memory.allocated

    def reset_peak_memory_stats(self):
        self.memory.peak, self.memory.peak_reserved = self.memory.allocated, self.memory.reserved

    def mem_get_info(self):
        return 1000, 2000


class Graph:
    def __init__(self, stream):
        self._stream = stream
        self.seconds = 0.0

    def replay(self):
        self._stream.launch("replay", self.seconds)


class NVMLError(Exception):
    pass


class FakeNvml:
    """Stands in for the module ``pynvml``. ``reasons``: throttle bits of the coming answers, the last one for good."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 0, 1

    def __init__(self, *reasons, processes=(), celsius=40, used_percent=0, known=True, driver=True):
        self._reasons = list(reasons) or [0]
        self._processes = processes
        self._celsius = celsius
        self._used_percent = used_percent
        self._known = known
        self._driver = driver

    def nvmlInit(self):  # noqa: N802
        if not self._driver:
            raise NVMLError

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        assert uuid == "GPU-1234-abcd"
        if not self._known:
            raise NVMLError
        return "handle"

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle):  # noqa: N802
        reasons = self._reasons.pop(0) if len(self._reasons) > 1 else self._reasons[0]
        if reasons is None:
            raise NVMLError
        return reasons

    def nvmlDeviceGetClockInfo(self, _handle, kind):  # noqa: N802
        return {self.NVML_CLOCK_SM: 1700, self.NVML_CLOCK_MEM: 2600}[kind]

    def nvmlDeviceGetMaxClockInfo(self, _handle, kind):  # noqa: N802
        return {self.NVML_CLOCK_SM: 1980}[kind]

    def nvmlDeviceGetTemperature(self, _handle, kind):  # noqa: N802
        assert kind == self.NVML_TEMPERATURE_GPU
        return self._celsius

    def nvmlDeviceGetTemperatureThreshold(self, _handle, kind):  # noqa: N802
        assert kind == self.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return 87

    def nvmlDeviceGetComputeRunningProcesses(self, _handle):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self._processes]

    def nvmlDeviceGetUtilizationRates(self, _handle):  # noqa: N802
        return SimpleNamespace(gpu=self._used_percent)

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "570.00"
