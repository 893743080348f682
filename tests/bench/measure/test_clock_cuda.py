"""The CUDA protocol, on a GPU that exists on paper only; and on a real one where there is one."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.measure import cuda
from bench.measure.call import Call, Operands, scatterer
from bench.measure.clock_cuda import NOT_HIDDEN, CudaClock
from bench.measure.cuda import Health, TorchRuntime
from bench.measure.memory import Weight, weigh_cuda
from bench.measure.timing import describe, time_on_cuda
from tests.bench.attentions import SETTINGS, case, small, variant
from tests.bench.fake_cuda import LAUNCH_SECONDS, FakeCuda, FakeNvml, NVMLError

FLUSH_SECONDS = 30e-6
HEAT, POWER_CAP = 0x40, 0x04


class Kernels:
    """An attention of ``kernels`` launches of ``seconds`` each on a fake device, and as many in its backward."""

    def __init__(self, gpu, seconds, *, kernels=1, waits=False):
        self.gpu, self.seconds, self.kernels, self.waits = gpu, seconds, kernels, waits

    def run(self, name):
        for _ in range(self.kernels):
            self.gpu.stream.launch(name, self.seconds / self.kernels)
        if self.waits:
            self.gpu.synchronize()

    def __call__(self, query, _key, _value):
        outer = self

        class Attention(torch.autograd.Function):
            @staticmethod
            def forward(_context, tensor):
                outer.run("forward")
                return tensor.clone()

            @staticmethod
            def backward(_context, gradient):
                outer.run("backward")
                return gradient

        return Attention.apply(query)


@pytest.fixture
def gpu(monkeypatch):
    device = FakeCuda()

    class Scratch:
        def zero_(self):
            device.stream.launch("flush", FLUSH_SECONDS)

    monkeypatch.setattr(TorchRuntime, "scratch", lambda self, size: device.stream.log.append(size) or Scratch())
    return device


def clock_on(gpu, attend, *, mode="fwd", nvml=None, **options):
    scatter = scatterer(attend, Operands.of(small()), mode)
    return CudaClock(scatter, TorchRuntime(gpu, nvml), host_now=gpu.now, **options)


def test_a_cold_block_queues_calls_behind_a_held_stream_each_after_a_flush(gpu):
    clock = clock_on(gpu, Kernels(gpu, 1e-3), call_seconds=2.5e-3)
    assert gpu.stream.log[0] == 100_000_000  # a buffer of twice the cache
    gpu.stream.log.clear()
    assert clock.sample().seconds == pytest.approx(1e-3)
    assert gpu.stream.log == ["wait", "hold", *["flush", "forward"] * 4, "wait"]


def test_a_warm_block_runs_the_call_before_and_flushes_nothing(gpu):
    clock = clock_on(gpu, Kernels(gpu, 1e-3), call_seconds=5e-3, state="warm")
    gpu.stream.log.clear()
    assert clock.sample().seconds == pytest.approx(1e-3)
    assert gpu.stream.log == ["wait", "hold", *["forward", "forward"] * 2, "wait"]


@pytest.mark.parametrize(
    ("mode", "order"),
    [("bwd", ["forward", "flush", "backward"]), ("fwd_bwd", ["flush", "forward", "backward"])],
)
def test_a_backward_has_its_forward_outside_the_events(gpu, mode, order):
    clock = clock_on(gpu, Kernels(gpu, 1e-3), mode=mode)
    gpu.stream.log.clear()
    assert clock.sample().seconds == pytest.approx(1e-3 if mode == "bwd" else 2e-3)
    assert gpu.stream.log == ["wait", "hold", *order, "wait"]


def test_a_warm_backward_follows_a_whole_call(gpu):
    clock = clock_on(gpu, Kernels(gpu, 1e-3), mode="bwd", state="warm")
    gpu.stream.log.clear()
    assert clock.sample().seconds == pytest.approx(1e-3)
    assert gpu.stream.log == ["wait", "hold", "forward", "backward", "forward", "backward", "wait"]


@pytest.mark.parametrize(("call_seconds", "calls"), [(0.0, 1), (1.0, 1), (5e-3, 2), (1e-6, 32)])
def test_a_block_is_ten_milliseconds_of_at_most_32_calls(gpu, call_seconds, calls):
    clock = clock_on(gpu, Kernels(gpu, 1e-6), call_seconds=call_seconds)
    gpu.stream.log.clear()
    clock.sample()
    assert gpu.stream.log.count("forward") == calls


def test_launches_are_hidden_as_soon_as_the_hold_is_long_enough(gpu):
    """Kernels of 1 µs whose launch costs 5: seen from the host they take 5, behind a held stream 1."""
    gpu.stream.depth = 10_000
    clock = clock_on(gpu, Kernels(gpu, 200e-6, kernels=200), call_seconds=1e-3)
    first, second = clock.sample(), clock.sample()
    assert first.blemish == NOT_HIDDEN
    assert first.seconds > 500e-6
    assert second.blemish is None
    assert second.seconds == pytest.approx(200e-6)


def test_blocks_get_shorter_until_their_launches_fit_into_the_queue(gpu):
    """32 calls of 100 kernels are more than the 1024 launches that a stream holds, however long it is held."""
    clock = clock_on(gpu, Kernels(gpu, 100e-6, kernels=100), call_seconds=1e-6)
    blemishes = [clock.sample().blemish for _ in range(8)]
    assert blemishes[0] == NOT_HIDDEN
    assert blemishes[-3:] == [None] * 3
    gpu.stream.log.clear()
    assert clock.sample().seconds == pytest.approx(100e-6)
    assert 1 < gpu.stream.log.count("flush") <= 10


def test_the_last_call_is_there_before_anything_was_timed(gpu):
    clock = clock_on(gpu, Kernels(gpu, 1e-3))
    assert clock.last_call is clock.last_call
    assert "forward" not in gpu.stream.log


@pytest.mark.parametrize(("state", "calls"), [("cold", 4), ("warm", 8)])
def test_own_seconds_are_those_in_calls(gpu, state, calls):
    clock = clock_on(gpu, Kernels(gpu, 1e-3), call_seconds=2.5e-3, state=state)
    clock.sample()
    assert clock.own_seconds == pytest.approx(calls * 1e-3)


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_no_two_calls_see_the_same_inputs(gpu, state):
    seen = []

    def attend(query, key, value):
        seen.append(tuple(tensor.numpy().tobytes() for tensor in (query, key, value)))
        return Kernels(gpu, 1e-3)(query, key, value)

    clock = clock_on(gpu, attend, call_seconds=2.5e-3, state=state)
    for _ in range(3):
        clock.sample()
    assert len(set(seen)) == len(seen) > 9


def test_a_call_that_waits_for_the_device_is_told(gpu):
    clock = clock_on(gpu, Kernels(gpu, 20e-6, waits=True), call_seconds=1e-3)
    assert [clock.sample().blemish for _ in range(3)] == [NOT_HIDDEN] * 3


def test_heat_is_a_cause_and_a_power_cap_is_none(gpu):
    clock = clock_on(gpu, Kernels(gpu, 1e-3), nvml=FakeNvml(0, HEAT, HEAT | POWER_CAP | 0x08, POWER_CAP, None, 1))
    assert [clock.sample().blemish for _ in range(6)] == [
        None,
        "hw_thermal_slowdown",
        "hw_slowdown, hw_thermal_slowdown",
        None,
        None,
        None,
    ]
    assert len(clock.healths) == 5  # the driver kept silent once
    assert describe(clock.healths) == {
        "sm_mhz": 1700,
        "memory_mhz": 2600,
        "celsius": 40,
        "throttling": "hw_slowdown, hw_thermal_slowdown, sw_power_cap",
    }


def test_the_driver_is_asked_while_the_device_works(gpu):
    class Watching(FakeNvml):
        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # noqa: N802
            assert gpu.stream.device > gpu.stream.host
            return super().nvmlDeviceGetCurrentClocksThrottleReasons(handle)

    clock_on(gpu, Kernels(gpu, 1e-3), nvml=Watching()).sample()


# --- the whole series ----------------------------------------------------------------------------------------------


@pytest.fixture
def host_time(gpu, monkeypatch):
    """Host time is the fake one."""
    import bench.measure.timing

    class OnFakeTime(CudaClock):
        __slots__ = ()

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, host_now=gpu.now, **options)

    monkeypatch.setattr(bench.measure.timing, "CudaClock", OnFakeTime)


@pytest.mark.usefixtures("host_time")
def test_a_long_call_is_timed_cold_and_warm(gpu):
    scatter = scatterer(Kernels(gpu, 1e-3), Operands.of(small()), "fwd")
    began = gpu.now()
    timing = time_on_cuda(scatter, TorchRuntime(gpu, FakeNvml()), call_seconds=1e-3, budget_seconds=4)
    assert timing.seconds == pytest.approx([1e-3] * 30)
    assert timing.warm == pytest.approx([1e-3] * 30)
    assert timing.graph is None
    assert timing.timer == "CUDA events, cold"
    assert timing.settled
    assert timing.conditions["sm_mhz"] == 1700
    assert timing.notes == []
    assert gpu.now() - began > 0.2  # the warm-up of a GPU takes at least that long
    assert timing.last_call.mode == "fwd"


@pytest.mark.usefixtures("host_time")
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_a_short_call_is_replayed_from_a_graph_as_well(gpu, mode):
    scatter = scatterer(Kernels(gpu, 20e-6, kernels=10), Operands.of(small()), mode)
    timing = time_on_cuda(scatter, TorchRuntime(gpu, None), call_seconds=1e-3, budget_seconds=2)
    expected = 20e-6 if mode == "fwd" else 40e-6
    assert timing.seconds == pytest.approx([expected] * len(timing.seconds))
    assert timing.graph == pytest.approx([expected] * 30)
    assert gpu.stream.log[-4:] == ["replay", "flush", "replay", "wait"]
    assert timing.notes == ["the driver does not tell clocks and throttling"]


@pytest.mark.usefixtures("host_time")
def test_a_call_that_cannot_be_captured_has_no_replay_but_a_reason(gpu):
    gpu.capturable = False
    scatter = scatterer(Kernels(gpu, 20e-6), Operands.of(small()), "fwd")
    timing = time_on_cuda(scatter, TorchRuntime(gpu, FakeNvml()), call_seconds=0, budget_seconds=1)
    assert timing.graph is None
    assert timing.notes == ["no CUDA graph: RuntimeError: operation not permitted when stream is capturing"]


@pytest.mark.usefixtures("host_time")
def test_a_backward_is_not_captured(gpu):
    scatter = scatterer(Kernels(gpu, 20e-6), Operands.of(small()), "bwd")
    timing = time_on_cuda(scatter, TorchRuntime(gpu, FakeNvml()), call_seconds=0, budget_seconds=1)
    assert timing.graph is None
    assert timing.notes == ["no CUDA graph: a backward is not captured without its forward"]


@pytest.mark.usefixtures("host_time")
def test_the_budget_is_shared_by_the_series(gpu):
    unsteady = itertools.cycle([1e-3, 2e-3, 3e-3, 4e-3, 5e-3])
    attend = Kernels(gpu, 0)

    def varying(*inputs):
        attend.seconds = next(unsteady)
        return attend(*inputs)

    began = gpu.now()
    scatter = scatterer(varying, Operands.of(small()), "fwd")
    timing = time_on_cuda(scatter, TorchRuntime(gpu, FakeNvml(HEAT)), call_seconds=1, budget_seconds=3)
    assert gpu.now() - began == pytest.approx(3 * 0.85, rel=0.1)
    assert not timing.settled
    assert any("too many to drop: hw_thermal_slowdown" in note for note in timing.notes)
    assert any(note.startswith("warm: ") for note in timing.notes)


def test_without_health_there_is_nothing_to_describe():
    assert describe([]) == {}
    assert describe([Health(1, 2, 3)])["throttling"] == "none"


# --- memory --------------------------------------------------------------------------------------------------------


def test_memory_is_what_the_allocator_says(gpu, monkeypatch):
    import bench.measure.memory

    monkeypatch.setattr(bench.measure.memory, "profile", fake_profile("kernel_b", "aten::bmm"))
    gpu.memory.take(5000)  # the inputs
    gpu.memory.reserved = 20_000  # a cache from before

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(_context, query):
            gpu.memory.take(1000)
            gpu.memory.give(300)
            return query.clone()

        @staticmethod
        def backward(_context, gradient):
            gpu.memory.take(800)
            return gradient

    workload = small(mode="fwd_bwd")
    call = Call(lambda query, *_: Attention.apply(query), Operands.of(workload).fresh(differentiable=True), "fwd_bwd")
    profiled = weigh_cuda(call, TorchRuntime(gpu, None))
    output = 2 * 96 * 16 * 4
    assert profiled.weight.peak_bytes == 1500
    assert profiled.weight.output_bytes == output
    assert profiled.weight.reserved_bytes == 1500
    assert profiled.dispatched == ["aten::bmm", "kernel_b"]  # by time, not as listed
    assert Weight.of(20_000, output=output, held=13_000).saved_bytes == 13_000 - output


def fake_profile(*names):
    """A profiler whose events come in reverse order of time."""

    class Profile:
        def __init__(self, **options):
            assert options == {"use_device": "cuda", "acc_events": False}
            events = [
                SimpleNamespace(name=lambda name=name: name, start_ns=lambda at=-at: at)
                for at, name in enumerate(names)
            ]
            self.kineto_results = SimpleNamespace(events=lambda: events)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    return Profile


# --- the thin layer itself -----------------------------------------------------------------------------------------


def test_the_runtime_asks_torch():
    gpu = FakeCuda()
    runtime = TorchRuntime(gpu, None)
    gpu.memory.take(300)
    gpu.memory.reserved = 700
    assert (runtime.allocated_bytes(), runtime.reserved_bytes()) == (300, 700)
    assert runtime.free_bytes() == 1000 + 700 - 300
    runtime.reset_peaks()
    assert (runtime.peak_allocated_bytes(), runtime.peak_reserved_bytes()) == (300, 300)
    assert runtime.l2_bytes() == 50_000_000
    scratch = runtime.scratch(10)
    assert (scratch.dtype, len(scratch), hasattr(scratch, "zero_")) == (torch.uint8, 10, True)
    assert runtime.health() is None


def test_a_device_that_the_driver_does_not_know_has_no_health():
    assert TorchRuntime(FakeCuda(), FakeNvml(known=False)).health() is None


@pytest.mark.parametrize(("driver", "found"), [(True, True), (False, False)])
def test_the_driver_is_there_or_not(monkeypatch, driver, found):
    fake = FakeNvml(driver=driver)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert (cuda.nvml() is fake) == found


def test_without_a_binding_there_is_no_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert cuda.nvml() is None


def test_the_runtime_of_this_process_is_made_once(monkeypatch):
    cuda.runtime.cache_clear()
    monkeypatch.setattr(cuda, "nvml", lambda: None)
    assert isinstance(cuda.runtime(), TorchRuntime)
    assert cuda.runtime() is cuda.runtime()
    cuda.runtime.cache_clear()


def test_reasons_have_the_names_of_the_driver():
    assert cuda.throttle_reasons(0x01) == ()
    assert cuda.throttle_reasons(0x84) == ("sw_power_cap", "hw_power_brake")
    assert set(cuda.throttle_reasons(0xFE)) > cuda.DISTURBING
    assert issubclass(NVMLError, Exception)


def test_the_fake_device_behaves_like_one(gpu):
    """A launch costs the host little, and the device works later."""
    gpu._sleep(2_000_000)
    assert gpu.now() == pytest.approx(LAUNCH_SECONDS)
    assert gpu.stream.device == pytest.approx(1e-3 + LAUNCH_SECONDS)
    assert not math.isnan(clock_on(gpu, Kernels(gpu, 1e-3))._cycles_per_second)


# --- a real one ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_a_real_gpu_measures(mode):
    from bench.measure.case import measure
    from bench.record import Measured

    workload = replace(small(mode=mode, query_length=512, key_length=512), device="cuda")
    it = variant(lambda workload, parameters: torch.nn.functional.scaled_dot_product_attention)
    outcome = measure(case(workload), it, settings=SETTINGS, ceilings={}, on_stage=lambda stage: None)
    assert isinstance(outcome, Measured), outcome
    assert outcome.seconds_warm
    assert outcome.dispatched
    assert outcome.peak_bytes >= outcome.output_bytes > 0
    assert outcome.reserved_bytes > 0
    assert mode == "bwd" or outcome.seconds_graph


@pytest.mark.gpu
def test_a_real_gpu_tells_its_health():
    assert cuda.runtime().health().sm_mhz > 0


@pytest.mark.gpu
def test_a_real_gpu_hides_launches():
    scatter = scatterer(
        torch.nn.functional.scaled_dot_product_attention,
        Operands.of(replace(small(), device="cuda")),
        "fwd",
    )
    clock = CudaClock(scatter, cuda.runtime())
    assert NOT_HIDDEN not in [clock.sample().blemish for _ in range(10)][5:]
