"""How a block is timed on a CPU, by a clock that only calls move on."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace

import pytest
import torch

import bench.measure.call
from bench.measure.call import Call, Operands, scatterer
from bench.measure.clock_cpu import ALONE, IN_TURNS, PREEMPTED, CpuClock, preemptions
from bench.measure.timing import time_on_cpu
from tests.bench.attentions import small

MILLISECOND = 1_000_000


class Time:
    """Nanoseconds that pass when something says so; ``on_core`` are those of this thread."""

    def __init__(self):
        self.wall = 0
        self.on_core = 0

    def pass_by(self, nanoseconds, *, waiting=0):
        self.wall += nanoseconds + waiting
        self.on_core += nanoseconds


def clock_of(attend, *, mode="fwd", time, call_seconds=0.0, copying=0, blocks=ALONE):
    """A CPU clock on ``time``; to copy the operands takes ``copying`` nanoseconds."""
    scatter = scatterer(attend, Operands.of(small(mode=mode)), mode)

    def scattered():
        time.pass_by(copying)
        return scatter()

    return CpuClock(scattered, call_seconds, blocks, now_ns=lambda: time.wall, on_core_ns=lambda: time.on_core)


def taking(time, *durations):
    """An attention whose calls take the given times in turn, the last one from then on."""
    left = list(durations)

    def attend(query, _key, _value):
        time.pass_by(left.pop(0) if len(left) > 1 else left[0])
        return query.clone()

    return attend


def test_a_block_is_ten_milliseconds_of_calls_and_its_sample_their_median():
    time = Time()
    calls = [MILLISECOND, *[MILLISECOND // 2] * 4, 900 * MILLISECOND, MILLISECOND]
    clock = clock_of(taking(time, *calls), time=time, blocks=IN_TURNS)
    assert clock.sample().seconds == pytest.approx(1e-3)  # nothing known yet: one call
    clock.blocks = replace(IN_TURNS, seconds=0.01)
    assert time.wall == MILLISECOND
    assert clock.sample().seconds == pytest.approx(1e-3)  # ten calls, one of them hit by something
    assert time.wall == (1 + 2 + 900 + 5) * MILLISECOND


def test_the_first_call_on_a_new_layout_is_not_timed():
    """It finds caches and page tables cold, which a plain loop does once, and short blocks of ours did each time."""
    time, layouts = Time(), []

    def attend(query, _key, _value):
        warm = layouts[-1:] == [query.data_ptr()]
        layouts.append(query.data_ptr())
        time.pass_by((6 if warm else 7) * MILLISECOND)
        return query.clone()

    clock = clock_of(attend, time=time, call_seconds=0.006)
    assert [clock.sample().seconds for _ in range(20)] == pytest.approx([6e-3] * 20)
    assert len(set(layouts)) > 3
    assert clock.own_seconds == pytest.approx(time.wall * 1e-9)


@pytest.mark.parametrize("blocks", [ALONE, IN_TURNS])
def test_a_long_call_is_a_block_of_its_own(blocks):
    """What it loses on a new layout is nothing beside it."""
    time = Time()
    clock = clock_of(taking(time, 100 * MILLISECOND), time=time, call_seconds=0.1, blocks=blocks)
    assert clock.sample().seconds == pytest.approx(0.1)
    assert time.wall == 100 * MILLISECOND


def test_sides_that_take_turns_time_every_call():
    time = Time()
    clock = clock_of(taking(time, MILLISECOND), time=time, call_seconds=1e-3, blocks=IN_TURNS)
    clock.sample()
    assert time.wall == 2 * MILLISECOND
    assert clock.timer == "perf_counter, blocks of 2 ms"


def test_every_block_has_another_layout_and_the_same_values():
    time, seen = Time(), []

    def attend(query, key, value):
        time.pass_by(20 * MILLISECOND)
        seen.append((query.data_ptr(), key.clone()))
        return query.clone()

    clock = clock_of(attend, time=time)
    for _ in range(6):
        clock.sample()
    assert len({address for address, _ in seen}) > 1
    base = Operands.of(small()).key.flatten()[2:]  # two numbers are touched before each call
    assert all(torch.equal(key.flatten()[2:], base) for _, key in seen)


@pytest.mark.parametrize(
    ("blocks", "changes"),
    [(ALONE, [5, 10]), (IN_TURNS, [6, 12])],  # half of 15 + 10 ms in calls of 10 ms; a quarter of 15 ms
)
def test_a_dear_layout_is_kept_until_it_is_a_small_part(blocks, changes):
    time = Time()
    clock = clock_of(
        taking(time, 10 * MILLISECOND), time=time, call_seconds=0.01, copying=15 * MILLISECOND, blocks=blocks
    )
    calls = []
    for _ in range(13):
        clock.sample()
        calls.append(clock.last_call)
    layouts = [first is not second for first, second in itertools.pairwise(calls)]
    assert [index for index, changed in enumerate(layouts, 1) if changed] == changes


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_no_call_sees_what_another_has_seen(dtype):
    """In each input, over blocks and layouts; all numbers stay finite, and but for a corner the same."""
    time, seen = Time(), []

    def attend(query, key, value):
        time.pass_by(MILLISECOND // 50)
        assert all(tensor.isfinite().all() for tensor in (query, key, value))
        seen.append(tuple(tuple(tensor.flatten()[:2].tolist()) for tensor in (query, key, value)))
        return query.clone()

    scatter = scatterer(attend, Operands.of(small(dtype=dtype)), "fwd")
    clock = CpuClock(scatter, call_seconds=20e-6, now_ns=lambda: time.wall, on_core_ns=lambda: time.on_core)
    clock.sample()
    clock.sample()
    assert len(seen) == 1002  # and one on each layout that is not timed
    for tensor in range(3):
        assert len({call[tensor] for call in seen}) == 1002


def test_a_lone_number_cannot_be_touched():
    time = Time()
    scatter = scatterer(
        taking(time, MILLISECOND), Operands.of(small(heads=1, kv_heads=1, query_length=1, head_dim=1)), "fwd"
    )
    CpuClock(scatter, now_ns=lambda: time.wall, on_core_ns=lambda: time.on_core).sample()


def test_without_access_to_memory_operators_touch(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(bench.measure.call.sys, "byteorder", "big")
    operands = Operands.of(small()).fresh(differentiable=True)
    touch = Call(None, operands, "bwd").touch()
    seen = {next(touch) or float(operands.key.detach().flatten()[0]) for _ in range(100)}
    assert len(seen) == 100


@pytest.mark.parametrize(
    ("mode", "timed"), [("fwd", 2 * MILLISECOND), ("bwd", 5 * MILLISECOND), ("fwd_bwd", 7 * MILLISECOND)]
)
def test_the_mode_says_what_is_under_the_clock(mode, timed):
    time, grads = Time(), []

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(_context, query, _key, _value):
            time.pass_by(2 * MILLISECOND)
            return query.clone()

        @staticmethod
        def backward(_context, gradient):
            time.pass_by(5 * MILLISECOND)
            grads.append(gradient)
            return gradient, None, None

    def attend(*inputs):
        assert torch.is_grad_enabled() == (mode != "fwd")
        assert all(tensor.requires_grad == (mode != "fwd") for tensor in inputs)
        return Attention.apply(*inputs)

    clock = clock_of(attend, mode=mode, time=time, call_seconds=timed * 1e-9)
    assert clock.sample().seconds == pytest.approx(timed * 1e-9)
    own = timed if mode != "bwd" else timed + 2 * MILLISECOND  # the untimed forward is the attention's own, too
    calls = 1 + round(1e-2 / (timed * 1e-9))  # the first is not timed
    assert clock.own_seconds == pytest.approx(calls * own * 1e-9)
    upstream = Operands.of(small()).upstream
    assert all(torch.equal(gradient, upstream) for gradient in grads)
    assert len(grads) == (0 if mode == "fwd" else calls)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_off_under_the_clock_and_then_as_before(enabled):
    time, states = Time(), []

    def attend(query, _key, _value):
        time.pass_by(MILLISECOND)
        states.append(gc.isenabled())
        return query.clone()

    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        clock_of(attend, time=time).sample()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert states == [False, False]


@pytest.mark.parametrize(
    ("call", "lost", "preempted", "blemished"),
    [
        (50 * MILLISECOND, 0, True, False),
        (50 * MILLISECOND, MILLISECOND, True, True),  # one call: 2% are in the sample
        (50 * MILLISECOND, MILLISECOND, False, False),  # it waited for something of its own
        (MILLISECOND, 0.1 * MILLISECOND, True, False),  # ten calls: the median does not care for one in ten
        (MILLISECOND, 0.6 * MILLISECOND, True, True),
        (MILLISECOND, 0.6 * MILLISECOND, False, False),
    ],
)
def test_a_block_that_lost_its_core_is_blemished(call, lost, preempted, blemished):
    time, switches = Time(), itertools.count() if preempted else itertools.repeat(7)

    def attend(query, _key, _value):
        time.pass_by(call, waiting=lost)
        return query.clone()

    clock = clock_of(attend, time=time, call_seconds=call * 1e-9)
    clock.preemptions = lambda: next(switches)
    assert clock.sample().blemish == (PREEMPTED if blemished else None)


def test_the_kernel_counts_preemptions(monkeypatch):
    import resource

    before = preemptions()
    assert before >= 0
    monkeypatch.delattr(resource, "RUSAGE_THREAD")
    assert preemptions() == 0


def test_a_result_is_freed_under_the_clock():
    """As in a plain loop: what a call leaves behind is part of what it costs."""
    time = Time()

    class Dear(torch.Tensor):
        def __del__(self):
            time.pass_by(3 * MILLISECOND)

    def attend(query, _key, _value):
        time.pass_by(MILLISECOND)
        return torch.zeros(1).as_subclass(Dear)

    assert clock_of(attend, time=time).sample().seconds == pytest.approx(4e-3)


def test_real_time_passes():
    scatter = scatterer(lambda query, key, value: query.clone(), Operands.of(small()), "fwd")
    timing = time_on_cpu(scatter, call_seconds=0, budget_seconds=0.1)
    assert len(timing.seconds) >= 3
    assert all(seconds > 0 for seconds in timing.seconds)
    assert timing.timer == "perf_counter, blocks of 10 ms after an untimed call"
    assert isinstance(timing.last_call, Call)
    assert set(timing.conditions) == {"load_1min", "steal_share", "others_busy_cores", "cpu_mhz"}
