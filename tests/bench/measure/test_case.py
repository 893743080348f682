"""One case through all stages: what is right is measured, and every fault costs its own case, by name."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import bench.measure.subject
from bench.errors import WrongUsageError
from bench.measure import room
from bench.measure.case import check, measure, time_in_turns
from bench.measure.torch_state import TorchState
from bench.measure.verdicts import explain, tidy
from bench.measure.work import useful_flops
from bench.record import (
    Failed,
    FellBack,
    Incorrect,
    Measured,
    OutOfMemory,
    Record,
    Settings,
    Unsupported,
    encode,
)
from tests.bench.attentions import SETTINGS, after, always, case, dense, small, variant, weights_of
from variants._contract import Complexity, Kernels
from variants._reference import exact, expand_heads

CEILINGS = {"matmul_flops_per_second:float32": 1e12, "copy_bytes_per_second": 1e11}


def outcome_of(
    build=dense, workload=None, *, settings=SETTINGS, ceilings=CEILINGS, on_stage=lambda stage: None, **changes
):
    return measure(
        case(workload or small()), variant(build, **changes), settings=settings, ceilings=ceilings, on_stage=on_stage
    )


# --- what is right -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_a_right_variant_is_measured(mode):
    workload = small(mode=mode, mask="causal")
    outcome = outcome_of(workload=workload)
    assert isinstance(outcome, Measured), outcome
    assert len(outcome.seconds) >= 3
    assert min(outcome.seconds) > 0
    assert outcome.peak_bytes > outcome.output_bytes == 2 * 96 * 16 * 4
    assert (outcome.saved_bytes is None) == (mode == "fwd")
    assert outcome.own_error <= outcome.tolerance
    assert (outcome.gradient_error is None) == (mode == "fwd")
    assert outcome.fidelity.mass_recall == 1
    assert outcome.setup_seconds >= outcome.first_call_seconds > 0
    assert outcome.compile_seconds is None
    assert outcome.useful_flops == useful_flops(workload)
    assert outcome.issued_flops == 1000
    assert "aten::bmm" in outcome.dispatched
    assert outcome.conditions["load_1min"] is not None
    assert outcome.conditions["own_seconds"] > outcome.setup_seconds + sum(outcome.seconds)
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Measured) == outcome


def test_the_stages_come_in_order():
    stages = []
    outcome_of(on_stage=stages.append)
    assert stages == ["start", "inputs", "build", "check", "memory", "time"]
    stages.clear()
    check(case(small()), variant(), settings=SETTINGS, on_stage=stages.append)
    assert stages == ["start", "inputs", "build", "check"]


def test_a_check_alone_takes_no_time():
    outcome = check(case(small(mode="bwd")), variant(), settings=SETTINGS, on_stage=lambda stage: None)
    assert isinstance(outcome, Measured)
    assert outcome.seconds == []
    assert outcome.peak_bytes is None
    assert outcome.gradient_error is not None
    assert outcome.dispatched
    wrong = variant(after(lambda output: output * 2))
    assert isinstance(check(case(small()), wrong, settings=SETTINGS, on_stage=lambda stage: None), Incorrect)


@pytest.mark.parametrize("mode", ["fwd", "bwd"])
def test_the_clock_alone_judges_and_weighs_nothing(mode):
    stages = []
    blocks = []

    def turn(block):
        blocks.append(block.seconds)
        return len(blocks) < 4

    found = time_in_turns(case(small(mode=mode)), variant(dense), settings=SETTINGS, on_stage=stages.append, turn=turn)
    assert stages == ["start", "inputs", "build", "time"]
    assert isinstance(found, Measured), found
    assert len(blocks) == 4
    assert min(blocks) > 0
    assert found.seconds == []
    assert (found.peak_bytes, found.own_error, found.fidelity, found.dispatched) == (None, None, None, [])
    assert found.issued_flops > 0
    assert found.timer.endswith("in turns")


def test_the_clock_alone_still_wants_an_attention_that_leaves_torch_as_it_was():
    def changes_grad_mode(workload, parameters):
        attend = dense(workload, parameters)

        def changing(query, key, value):
            torch.set_default_dtype(torch.float64)
            return attend(query, key, value)

        return changing

    found = time_in_turns(
        case(small()),
        variant(changes_grad_mode),
        settings=SETTINGS,
        on_stage=lambda _: None,
        turn=lambda block: False,
    )
    assert isinstance(found, Failed), found
    assert "global state" in found.message


def test_parameters_have_the_type_of_the_variant():
    @dataclass(frozen=True)
    class Parameters:
        rank: int = 3

    seen = []

    def build(workload, parameters):
        seen.append(parameters)
        return dense(workload)

    it = variant(build, parameters=Parameters)
    measure(case(small(), rank=7), it, settings=SETTINGS, ceilings={}, on_stage=lambda stage: None)
    assert seen == [Parameters(7)]


def test_the_fraction_of_the_ceiling_and_what_bounds_it():
    outcome = outcome_of(flops=lambda workload, parameters: 10)
    assert outcome.bound == "memory"
    assert 0 < outcome.roofline_fraction < 1
    assert outcome_of(ceilings={}).roofline_fraction is None
    beyond = outcome_of(flops=lambda workload, parameters: 10**15)
    assert beyond.bound == "compute"
    assert beyond.roofline_fraction > 1.05
    assert "of the measured ceiling" in beyond.notes[-1]


# --- what is not ---------------------------------------------------------------------------------------------------


class Unspeakable(Exception):  # noqa: N818  # a bad example
    """Cannot be pickled, nor turned into text."""

    def __init__(self):
        super().__init__(lambda: None)

    def __str__(self):
        raise ValueError


def raising(error):
    def build(workload, parameters):
        def attend(query, key, value):
            raise error

        return attend

    return build


def raising_at_build(workload, parameters):
    raise ValueError("no such block size in /home/somebody/secret/kernel.py")


def same_tensor_twice(workload, parameters):
    attend, kept = dense(workload), torch.empty(1, 2, 96, 16)
    return lambda query, key, value: kept.copy_(attend(query, key, value))


def changing(name):
    def build(workload, parameters):
        attend = dense(workload)

        def wrong(query, key, value):
            output = attend(query, key, value)
            {"query": query, "key": key, "value": value}[name].data.mul_(2)
            return output

        return wrong

    return build


def changing_later(workload, parameters):
    attend, calls = dense(workload), itertools.count()

    def wrong(query, key, value):
        output = attend(query, key, value)
        if next(calls) == 2:
            key.data.mul_(2)
        return output

    return wrong


def in_the_place_of_an_input(workload, parameters):
    """Right, but written over the query."""

    def attend(query, key, value):
        return query.copy_(dense(workload)(query, key, value))

    return attend


def growing(workload, parameters):
    attend, calls = dense(workload), itertools.count(1)

    def wrong(query, key, value):
        torch.empty(next(calls) * 1_000_000)
        return attend(query, key, value)

    return wrong


def setting(change):
    def build(workload, parameters):
        attend = dense(workload)

        def wrong(query, key, value):
            change()
            return attend(query, key, value)

        return wrong

    return build


FAILED = {
    "raises": (raising(KeyError("head")), "build", "KeyError: 'head'"),
    "raises at build": (raising_at_build, "build", "ValueError: no such block size in kernel.py"),
    "raises the unspeakable": (raising(Unspeakable()), "build", "Unspeakable"),
    "exits": (raising(SystemExit(3)), "build", "SystemExit: 3"),
    "returns nothing": (always(lambda query, key, value: None), "build", "expected a tensor, got NoneType"),
    "wrong shape": (
        after(lambda output: output[:, :, 1:]),
        "build",
        "expected an output of shape (1, 2, 96, 16), got (1, 2, 95, 16)",
    ),
    "wrong dtype": (
        after(lambda output: output.double()),
        "build",
        "expected an output of dtype float32, got float64",
    ),
    "wrong device": (after(lambda output: output.to("meta")), "build", "expected an output on cpu, got one on meta"),
    "same tensor twice": (
        same_tensor_twice,
        "check",
        "the same tensor came back twice: the second call overwrote the result of the first",
    ),
    "changes query": (changing("query"), "build", "query was changed in place"),
    "changes key": (changing("key"), "build", "key was changed in place"),
    "changes value": (changing("value"), "build", "value was changed in place"),
    "changes key later": (changing_later, "memory", "key was changed in place"),
    "over an input": (in_the_place_of_an_input, "build", "the output shares its memory with query"),
    "grows": (growing, "memory", "the variant is not declared stochastic"),
    "threads": (setting(lambda: torch.set_num_threads(2)), "build", "threads from 1 to 2"),
    "default dtype": (
        setting(lambda: torch.set_default_dtype(torch.float64)),
        "build",
        "default dtype from torch.float32 to torch.float64",
    ),
    "precision": (
        setting(lambda: torch.set_float32_matmul_precision("medium")),
        "build",
        "float32 precision from highest to medium",
    ),
    "seed": (setting(lambda: torch.manual_seed(7)), "build", "it changed torch's global state: seed from 0 to 7"),
    "anomaly": (
        setting(lambda: torch.autograd.set_detect_anomaly(True)),
        "build",
        "it changed torch's global state: anomaly detection from False to True",
    ),
    "autocast": (
        setting(lambda: torch.set_autocast_dtype("cuda", torch.bfloat16)),
        "build",
        "dtype of autocast on cuda from torch.float16 to torch.bfloat16",
    ),
    "default device": (
        setting(lambda: torch.set_default_device("meta")),
        "build",
        "it changed torch's global state: default device from cpu to meta",
    ),
    "backends": (
        setting(lambda: torch.backends.cuda.enable_math_sdp(False)),
        "build",
        "math attention from True to False",
    ),
}


@pytest.mark.parametrize("fault", FAILED)
def test_a_fault_fails_by_name_and_leaves_no_trace(fault):
    build, stage, message = FAILED[fault]
    before = outcome_of()
    torch.manual_seed(0)
    state = TorchState.now()
    outcome = outcome_of(build)
    assert isinstance(outcome, Failed), outcome
    assert outcome.stage == stage
    assert message in outcome.message
    assert state.changes(TorchState.now()) == []
    after_it = outcome_of()
    assert (after_it.own_error, after_it.peak_bytes) == (before.own_error, before.peak_bytes)


def test_deterministic_algorithms_are_restored_too():
    """Apart, since the setter imports the compiler."""
    outcome = outcome_of(setting(lambda: torch.use_deterministic_algorithms(mode=True)))
    assert "deterministic algorithms from False to True" in outcome.message
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_stochastic_variant_may_weigh_differently():
    outcome = outcome_of(growing, stochastic=True)
    assert isinstance(outcome, Measured)
    assert outcome.peak_bytes >= 4_000_000 * 4  # the heaviest of calls two to four


def keeping(key_of):
    """Keeps results, and finds them again by what ``key_of`` makes of the inputs."""

    def build(workload, parameters):
        attend, kept = dense(workload), {}

        def cached(query, key, value):
            found = key_of(query, key, value)
            if found not in kept:
                kept[found] = attend(query, key, value)
            return kept[found].clone()

        return cached

    return build


def addresses(*tensors):
    return tuple(tensor.data_ptr() for tensor in tensors)


def versions(*tensors):
    return tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)


def wrong_from(call):
    def build(workload, parameters):
        attend, calls = dense(workload), itertools.count(1)

        def wrong(query, key, value):
            output = attend(query, key, value)
            return output * 1.01 if next(calls) >= call else output

        return wrong

    return build


def with_nan(output):
    output[0, 0, 5, 3] = float("nan")
    return output


INCORRECT = {
    "NaN": (after(with_nan), "check", "1 of 3072 numbers of the output are not finite"),
    "nearly right": (after(lambda output: output + 1e-3), "check", "is off by 0.001, where rounding explains"),
    "wrong later": (wrong_from(7), "time", "right at first, wrong after timing"),
    "keeps results by address": (keeping(addresses), "time", "right at first, wrong after timing"),
    "keeps results by version": (keeping(versions), "time", "right at first, wrong after timing"),
    "keeps the first result": (keeping(lambda *_: None), "time", "right at first, wrong after timing"),
}


@pytest.mark.parametrize("fault", INCORRECT)
def test_what_is_wrong_has_no_time(fault):
    build, stage, message = INCORRECT[fault]
    outcome = outcome_of(build)
    assert isinstance(outcome, Incorrect), outcome
    assert outcome.stage == stage
    assert message in outcome.message
    assert (outcome.own_error is None) == (fault == "NaN")
    assert fault == "NaN" or outcome.own_error > outcome.tolerance


def test_results_kept_by_content_are_of_no_use():
    """Every timed call sees inputs that no call before it saw."""
    used = []

    def key_of(*tensors):
        used.append(tuple(tensor.numpy().tobytes() for tensor in tensors))
        return used[-1]

    assert isinstance(outcome_of(keeping(key_of)), Measured)
    timed = used[used.count(used[0]) : -1]  # those before are of the calls that were checked and weighed
    assert len(timed) > 3
    assert len(set(timed)) == len(timed)


def test_a_wrong_gradient_is_incorrect():
    def build(workload, parameters):
        attend = dense(workload)
        return lambda query, key, value: attend(query, key.detach(), value)

    outcome = outcome_of(build, small(mode="fwd_bwd"))
    assert isinstance(outcome, Incorrect)
    assert "the gradient of key is off by" in outcome.message
    assert outcome.gradient_error > outcome.gradient_tolerance
    assert outcome.own_error <= outcome.tolerance


def test_an_output_without_a_graph_fails():
    outcome = outcome_of(after(lambda output: output.detach()), small(mode="bwd"))
    assert isinstance(outcome, Failed)
    assert "does not require grad" in outcome.message


def test_a_nan_in_a_gradient_is_incorrect():
    def build(workload, parameters):
        attend = dense(workload)
        return lambda query, key, value: attend(query, key, value) + 0 * torch.sqrt(query - query)

    outcome = outcome_of(build, small(mode="bwd"))
    assert isinstance(outcome, Incorrect)
    assert "numbers of the gradient of query are not finite" in outcome.message


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:126] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_running_out_of_memory_is_told_apart(error):
    outcome = outcome_of(raising(error))
    assert isinstance(outcome, OutOfMemory)
    assert outcome.stage == "build"
    assert outcome.predicted_bytes is None


def test_a_real_allocation_that_fails_is_out_of_memory():
    outcome = outcome_of(always(lambda query, key, value: torch.empty(2**50)))
    assert isinstance(outcome, OutOfMemory)


def test_what_cannot_fit_is_not_tried(monkeypatch):
    built = []

    def build(workload, parameters):
        built.append(workload.key_length)
        return dense(workload)

    monkeypatch.setattr(room, "available_bytes", lambda: 20_000_000)
    workload = small(batch=4, query_length=1100, key_length=1100)
    stages = []
    outcome = outcome_of(build, workload, on_stage=stages.append)
    assert isinstance(outcome, OutOfMemory)
    assert outcome.stage == "predicted"
    assert outcome.predicted_bytes > 4 * 2 * 1100 * 1100 * 4 * 2
    assert "0.0 GiB are available" in outcome.message
    assert built == [1100, 1100]
    assert stages == ["start", "predicted"]


def test_what_fits_is_measured_after_a_prediction(monkeypatch):
    monkeypatch.setattr(room, "available_bytes", lambda: 20_000_000)
    stages = []
    chunks = always(
        lambda query, key, value: torch.cat(
            [torch.softmax(part @ key.mT / 4, dim=-1) @ value for part in query.split(64, dim=2)], dim=2
        )
    )
    outcome = outcome_of(chunks, small(batch=4, query_length=1100, key_length=1100), on_stage=stages.append)
    assert isinstance(outcome, Measured), outcome
    assert stages[:3] == ["start", "predicted", "inputs"]
    stages.clear()
    linear = outcome_of(chunks, small(), on_stage=stages.append, complexity=Complexity(1, 1))
    assert isinstance(linear, Measured)
    assert "predicted" not in stages


def test_obstacles_come_before_anything_else():
    outcome = outcome_of(raising_at_build, obstacles=lambda workload, parameters: ["it is Monday"])
    assert outcome == Unsupported(reasons=["it is Monday"])


def test_another_kernel_than_promised_is_a_fall_back():
    outcome = outcome_of(kernels={"cpu": Kernels(required=("flash",))})
    assert isinstance(outcome, FellBack)
    assert "expected something like 'flash' to run" in outcome.message
    assert "aten::bmm" in outcome.dispatched
    assert isinstance(outcome_of(kernels={"cpu": Kernels(required=("bmm",)), "cuda": Kernels(("no",))}), Measured)


@pytest.mark.parametrize("count", [0, -5, 1.5, True, None, "many", float("nan"), 2**63, torch.tensor(5)])
def test_a_count_of_flops_that_is_none_is_an_error(count):
    outcome = outcome_of(flops=lambda workload, parameters: count)
    assert isinstance(outcome, Failed)
    assert outcome.message == f"the variant counts {count!r} FLOPs; expected a whole number from 1 to {2**63 - 1}"


def test_an_integer_of_numpy_is_one():
    issued = outcome_of(flops=lambda workload, parameters: np.int64(7)).issued_flops
    assert (issued, type(issued)) == (7, int)


@pytest.mark.parametrize("given", ["no cpu", None, 3, [""], [" "], [1], b"no", {"a": 1}.values()])
def test_obstacles_that_are_no_sentences_are_an_error(given):
    outcome = outcome_of(obstacles=lambda workload, parameters: given)
    assert isinstance(outcome, Failed)
    assert outcome.stage == "start"
    assert "the variant's obstacles gives " in outcome.message
    assert "; expected a list of sentences" in outcome.message


def test_obstacles_may_come_one_by_one_and_are_lines_that_can_be_stored():
    outcome = outcome_of(obstacles=lambda workload, parameters: (reason for reason in ["no\nCPU \ud800"]))
    assert outcome == Unsupported(reasons=[r"no CPU \ud800"])


def test_what_was_built_must_be_callable():
    outcome = outcome_of(lambda workload, parameters: None)
    assert outcome == Failed(
        stage="build", message="the variant's build gives None; expected a function of query, key and value"
    )


@pytest.mark.parametrize("mode", ["fwd", "bwd"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_formula_that_is_not_finite_is_at_fault_itself(mode, dtype):
    def reference(query, key, value, **others):
        output = exact(query, key, value, **others)
        output.register_hook(lambda gradient: gradient * float("inf")) if output.requires_grad else None
        spoilt = mode == "fwd" and query.dtype == dtype
        return output * float("nan") if spoilt else output

    outcome = outcome_of(workload=small(mode=mode), reference=reference)
    assert isinstance(outcome, Failed), outcome
    assert outcome.stage == "check"
    assert "the variant's reference is not finite: " in outcome.message
    assert ("gradient of " in outcome.message) == (mode == "bwd")


@pytest.mark.parametrize("size", [3, 4, 7])
def test_a_ring_of_buffers_overwrites_results_in_use(size):
    def build(workload, parameters):
        attend, calls = dense(workload), itertools.count()
        ring = [torch.empty(1, 2, 96, 16) for _ in range(size)]
        return lambda query, key, value: ring[next(calls) % size].copy_(attend(query, key, value))

    outcome = outcome_of(build)
    assert isinstance(outcome, Failed), outcome
    assert f"came back twice: call {size + 1} overwrote the result of the first" in outcome.message


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_what_each_call_keeps_is_noted_unless_it_is_garbage(mode):
    def keeping_in(place):
        def build(workload, parameters):
            attend = dense(workload)

            def keeping_more(query, key, value):
                place(torch.empty(1 << 18))
                return attend(query, key, value)

            return keeping_more

        return build

    def in_a_cycle(tensor):
        cycle = [tensor]
        cycle.append(cycle)

    kept, last = [], {}
    note = "keeps 1.00 MiB more with each call"
    assert note in outcome_of(keeping_in(kept.append), small(mode=mode)).notes
    for sound in (in_a_cycle, lambda tensor: last.update(it=tensor), lambda tensor: None):
        outcome = outcome_of(keeping_in(sound), small(mode=mode), stochastic=True)  # the collector comes when it likes
        assert not any("more with each call" in each for each in outcome.notes)


def test_other_threads_than_the_settings_say_are_refused():
    outcome = outcome_of(settings=Settings(threads=3))
    assert isinstance(outcome, Failed)
    assert outcome.stage == "start"
    assert "torch runs 1 threads where the settings say 3" in outcome.message


def test_an_interrupt_goes_through():
    with pytest.raises(KeyboardInterrupt):
        outcome_of(raising(KeyboardInterrupt()))


def test_a_child_that_comes_back_ends(monkeypatch):
    """The variant forks, and its child returns into the harness, too."""
    ended = []
    monkeypatch.setattr(bench.measure.subject.os, "_exit", ended.append)
    own = os.getpid()

    def build(workload, parameters):
        monkeypatch.setattr(bench.measure.subject.os, "getpid", lambda: own + 1)
        return dense(workload)

    outcome_of(build)
    assert ended
    assert set(ended) == {0}


def test_a_message_is_one_short_line_without_folders():
    text = "bad\n  file '/home/me/a b/x.py' and C:\\Users\\me\\y.py, rate 3/4, aten::mm/x" + "z" * 500
    line = tidy(text)
    assert "\n" not in line
    assert "home" not in line
    assert "Users" not in line
    assert "rate 3/4" in line
    assert len(line) == 400
    assert tidy("\x1b[2J \ud800 \u202e é") == r"\x1b[2J \ud800 \u202e é"
    assert explain(ValueError(), "check") == Failed(stage="check", message="ValueError")
    ours = WrongUsageError("expected finite numbers")
    assert explain(ours, "inputs") == Failed(stage="inputs", message="expected finite numbers")


def test_no_number_that_is_not_finite_enters_a_record():
    """A first key alone, and rows that see nothing: errors, cosines and shares are still numbers or absent."""
    from bench.machine.host import describe_host, describe_source
    from bench.record import About

    workload = small(query_length=64, key_length=8, mask="causal", mode="fwd_bwd")
    outcome = outcome_of(workload=workload)
    assert isinstance(outcome, Measured), outcome
    record = Record(
        run_id="r",
        case=case(workload),
        outcome=outcome,
        about=About(family="exact", exact=True),
        settings=SETTINGS,
        host=describe_host("cpu"),
        source=describe_source(),
    )
    assert encode(record)


def test_the_profiler_keeps_off_stderr():
    code = """
from tests.bench.attentions import *
from bench.measure.case import measure
assert measure(case(small()), variant(), settings=SETTINGS, ceilings={}, on_stage=print).seconds
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_case_on_cuda_goes_through_the_same_stages(monkeypatch):
    """On a machine without one: tensors stay on the CPU, and everything asked of CUDA is asked of a fake."""
    import bench.measure.memory
    from bench.measure import cuda, inputs
    from bench.measure.cuda import TorchRuntime
    from tests.bench.fake_cuda import FakeCuda, FakeNvml
    from tests.bench.measure.test_clock_cuda import fake_profile

    gpu, make = FakeCuda(), inputs.make
    monkeypatch.setattr(cuda, "runtime", lambda: TorchRuntime(gpu, FakeNvml()))
    monkeypatch.setattr(bench.measure.memory, "profile", fake_profile("fmha_kernel"))
    monkeypatch.setattr(inputs, "make", lambda workload: make(replace(workload, device="cpu")))

    def build(workload, parameters):
        attend = dense(replace(workload, device="cpu"))

        def launched(query, key, value):
            gpu.memory.take(1000)
            gpu.stream.launch("fmha", 1e-3)
            gpu.memory.give(1000)
            return attend(query, key, value)

        return launched

    stages = []
    workload = small(device="cuda")
    it = {"kernels": {"cuda": Kernels(("fmha",), ("bmm",))}, "complexity": Complexity(1, 1)}
    long = replace(workload, batch=4)
    monkeypatch.setattr(FakeCuda, "mem_get_info", lambda self: (999, 2**40))
    outcome = outcome_of(build, long, **it)
    assert (outcome.stage, outcome.predicted_bytes) == ("predicted", 1000)
    monkeypatch.setattr(FakeCuda, "mem_get_info", lambda self: (2**40, 2**40))
    outcome = outcome_of(build, workload, on_stage=stages.append, **it)
    assert isinstance(outcome, Measured), outcome
    assert stages == ["start", "inputs", "build", "check", "memory", "time"]
    assert outcome.seconds == pytest.approx([1e-3] * len(outcome.seconds))
    assert outcome.seconds_warm == pytest.approx([1e-3] * len(outcome.seconds_warm))
    assert outcome.dispatched == ["fmha_kernel"]
    assert (outcome.peak_bytes, outcome.reserved_bytes) == (1000, 1000)
    assert outcome.conditions["sm_mhz"] == 1700
    assert isinstance(outcome_of(build, workload, kernels={"cuda": Kernels(("cudnn",))}), FellBack)


def test_grouped_heads_and_other_lengths_are_measured():
    def build(workload, parameters):
        return lambda query, key, value: weights_of(workload, query, key) @ expand_heads(value, workload)

    workload = replace(small(), heads=4, kv_heads=2, query_length=33, key_length=70, mask="causal", mode="fwd_bwd")
    assert isinstance(outcome_of(build, workload), Measured)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, on its first compilation
@pytest.mark.parametrize(
    ("breaks", "counts"), [(False, {"graph_breaks": 0, "recompiles": 1}), (True, {"graph_breaks": 1})]
)
def test_what_the_compiler_did_is_counted(breaks, counts):
    def build(workload, parameters):
        attend, calls = dense(workload, parameters), itertools.count()

        def doubled(tensor, twice):
            tensor = tensor * 2
            if breaks:
                torch._dynamo.graph_break()
            return tensor * (0.5 if twice else 1 / 2)

        compiled = torch.compile(doubled, backend="eager", dynamic=False)
        return lambda query, key, value: attend(compiled(query, next(calls) > 0), key, value)

    found = outcome_of(build)
    assert {name: found.conditions[name] for name in counts} == counts


def test_what_is_not_compiled_has_no_counts_of_the_compiler():
    assert "recompiles" not in outcome_of().conditions
