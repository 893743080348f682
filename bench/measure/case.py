"""One case: check it, prove what ran, weigh it, time it, check it again → its outcome.

The stages, as they are told to ``on_stage``: ``start``, ``predicted`` (where memory could matter), ``inputs``,
``build``, ``check``, ``memory``, ``time``. Whatever a variant raises, returns or leaves changed ends as the outcome of
its case.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, TypedDict

import msgspec
import torch

from bench import wording
from bench.fidelity import fits
from bench.measure import answers, compilation, cuda, dispatch, oracle, prediction, room, rows, soundness, work
from bench.measure.attention_map import attention_map
from bench.measure.call import Call, Operands, Result, load_backward, scatterer
from bench.measure.clock_cpu import IN_TURNS, CpuClock
from bench.measure.clock_cuda import CudaClock
from bench.measure.compilation import Compilation
from bench.measure.conditions import Watch
from bench.measure.fidelity import fidelity
from bench.measure.subject import Subject, outcome_of
from bench.measure.timing import Timing, time_on_cpu, time_on_cuda
from bench.measure.verdicts import Rejection, tidy
from bench.record import FellBack, Fidelity, Incorrect, Measured, OutOfMemory, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.measure.clock import Sample
    from bench.measure.memory import Profiled
    from bench.measure.oracle import Agreement, Truth
    from bench.record import Case, Outcome, Settings, Stage
    from variants._contract import Attend, Variant

_WEIGHINGS = 3
_MORE_CALLS = 16  # not weighed, to come round in a ring of buffers
_MORE_SECONDS = 0.03
_LATER_ROWS = 6
_ABOVE_CEILING = 1.05
_LATER = "right at first, wrong after timing, on new values in old places: "


def measure(
    case: Case,
    variant: Variant,
    *,
    settings: Settings,
    ceilings: Mapping[str, float],
    on_stage: Callable[[Stage], None],
) -> Outcome:
    """Everything about a case. Never raises for what the variant does; ``on_stage`` is told before a stage begins.

    ``ceilings`` are those of :mod:`bench.measure.ceilings`; without them there is no roofline fraction.
    """
    return outcome_of(case, variant, settings, on_stage, lambda subject: _measured(subject, ceilings))


def check(case: Case, variant: Variant, *, settings: Settings, on_stage: Callable[[Stage], None]) -> Outcome:
    """The oracle and the proof of what ran, without weighing and timing: no ``seconds``, no ``peak_bytes``."""
    return outcome_of(case, variant, settings, on_stage, _checked)


def time_in_turns(
    case: Case,
    variant: Variant,
    *,
    settings: Settings,
    on_stage: Callable[[Stage], None],
    turn: Callable[[Sample], bool],
) -> Outcome:
    """The clock alone, for a case that has been checked, one block at a time.

    ``turn`` gets a block, the first one of a warm-up, and says whether there shall be another. The outcome has no
    ``seconds``, since whoever takes turns knows best which blocks to keep, no ``own_error`` and no ``peak_bytes``.
    """
    return outcome_of(case, variant, settings, on_stage, lambda subject: _in_turns(subject, turn))


def _measured(subject: Subject, ceilings: Mapping[str, float]) -> Outcome:
    _start(subject)
    _refuse_what_cannot_fit(subject)
    built, first = _build(subject)
    verdict, profiled = _check(subject, built, first)
    weighings = _weigh(subject, built, first, profiled)
    notes = _kept_by_each_call(subject, first.dense(built.base), weighings)
    del first  # nothing of ours lies about while the clock runs
    timing = _time(subject, built, min(weighing.seconds for weighing in weighings))
    _check_again(subject, timing.last_call)
    record = _record(subject, built, verdict, weighings[0].dispatched)
    record.notes.extend(notes)
    return _with_roofline(_with_figures(record, built, weighings, timing), subject, ceilings)


def _checked(subject: Subject) -> Outcome:
    _start(subject)
    built, first = _build(subject)
    verdict, profiled = _check(subject, built, first)
    subject.refuse_changed_state()
    return _record(subject, built, verdict, profiled.dispatched)


def _in_turns(subject: Subject, turn: Callable[[Sample], bool]) -> Outcome:
    _start(subject)
    built, first = _build(subject)
    _, call_seconds = _first_result(subject, first.dense(built.base))  # the one before has loaded what loads lazily
    del first
    subject.enter("time")
    compilation.restart()
    scatter = scatterer(built.attend, built.base, subject.workload.mode)
    clock = CudaClock(scatter, cuda.runtime()) if subject.on_cuda else CpuClock(scatter, call_seconds, IN_TURNS)
    watch, begun = Watch.start(), perf_counter()
    block = clock.sample()
    while perf_counter() - begun < clock.warm_up_seconds:
        block = clock.sample()
    while turn(block):
        block = clock.sample()
    notes = compilation.again()
    subject.refuse_changed_state()
    record = _record(subject, built, None, [])
    return msgspec.structs.replace(
        record, timer=f"{clock.timer}, in turns", conditions=watch.report(), notes=[*record.notes, *notes]
    )


@dataclass(frozen=True, slots=True)
class Built:
    """A variant ready to be called, the values to call it on, and what it took to get there."""

    attend: Attend
    base: Operands
    build_seconds: float
    first_call_seconds: float
    compiled: Compilation

    @property
    def setup_seconds(self) -> float:
        return self.build_seconds + self.first_call_seconds


@dataclass(frozen=True, slots=True)
class First:
    """The first call, with an upstream gradient on the oracle's rows only, and what came of it."""

    call: Call
    result: Result

    def dense(self, base: Operands) -> Call:
        """The same call with an upstream gradient on all rows."""
        return replace(self.call, operands=replace(self.call.operands, upstream=base.upstream))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the oracle found, all of it within tolerance."""

    output: Agreement
    gradients: Agreement | None
    fidelity: Fidelity
    attention_map: list[str] | None


# --- the stages ---------------------------------------------------------------------------------------------------


def _start(subject: Subject) -> None:
    subject.enter("start")
    threads, wanted = subject.before.values["threads"], subject.settings.threads
    if threads != wanted:
        subject.refuse(f"torch runs {threads} threads where the settings say {wanted}; set them before measuring")
    own = answers.obstacles(subject.variant, subject.workload, subject.parameters)
    reasons = [*own, *fits.obstacles(subject.workload)]
    if reasons:
        raise Rejection(Unsupported(reasons=reasons))


def _refuse_what_cannot_fit(subject: Subject) -> None:
    """Where memory could matter at all, predict the peak; a case that cannot fit ends here."""
    available = cuda.runtime().free_bytes() if subject.on_cuda else room.available_bytes()
    if not prediction.could_matter(subject.variant, subject.workload, available):
        return
    subject.enter("predicted")
    predicted = prediction.predicted_peak_bytes(subject.problem, subject.weigh)
    if predicted is not None and predicted > available:
        taken, left = f"{predicted / 2**30:.1f} GiB", f"{available / 2**30:.1f} GiB"
        message = f"a call is predicted to take {taken} beside its inputs, and {left} are available"
        raise Rejection(OutOfMemory(stage=subject.stage, message=message, predicted_bytes=predicted))


def _build(subject: Subject) -> tuple[Built, First]:
    """Inputs, the variant, and its first call."""
    subject.enter("inputs")
    base = Operands.of(subject.workload)
    if subject.workload.mode != "fwd":
        load_backward()
    sampled = rows.sample(subject.workload, rows.how_many(subject.workload))
    operands = oracle.only_on(sampled, base).fresh(differentiable=subject.workload.mode != "fwd")

    subject.enter("build")
    compilation.restart()
    start = perf_counter()
    attend = answers.built(subject.variant, subject.workload, subject.parameters)
    build_seconds = perf_counter() - start

    call = Call(attend, operands, subject.workload.mode)
    result, first_call_seconds = _first_result(subject, call)
    compiled = compilation.so_far()
    subject.refuse(soundness.aliased(result, operands))
    subject.refuse(soundness.changed_inputs(operands, base))
    return Built(attend, base, build_seconds, first_call_seconds, compiled), First(call, result)


def _first_result(subject: Subject, call: Call) -> tuple[Result, float]:
    """A result that has the form of an attention's, and the seconds that it took."""
    start = perf_counter()
    with torch.set_grad_enabled(call.differentiates):
        output = call.forward()
    subject.refuse(soundness.malformed(output, subject.workload, call.operands.query.device))
    result = Result(output, call.backward(output) if call.differentiates else None)
    if subject.on_cuda:
        cuda.runtime().synchronize()
    return result, perf_counter() - start


def _check(subject: Subject, built: Built, first: First) -> tuple[Verdict, Profiled]:
    """The oracle's verdict on the first call, and a second one under the profiler that shows what runs."""
    subject.enter("check")
    sampled = rows.sample(subject.workload, rows.how_many(subject.workload))
    truth, output, gradients = _judge(subject, first.call, first.result, sampled)
    close = fidelity(subject.problem, truth, first.result.output)
    verdict = Verdict(output, gradients, close, attention_map(subject.problem, truth))
    profiled = subject.weigh(first.dense(built.base))
    subject.refuse(soundness.reused(first.result.output, [profiled.output_address]))
    objection = dispatch.fell_back(subject.variant, subject.workload.device, profiled.dispatched)
    if objection is not None:
        dispatched = dispatch.readable(profiled.dispatched)
        raise Rejection(FellBack(stage=subject.stage, message=tidy(objection), dispatched=dispatched))
    return verdict, profiled


def _judge(
    subject: Subject, call: Call, result: Result, sampled: torch.Tensor, when: str = ""
) -> tuple[Truth, Agreement, Agreement | None]:
    """What is right, and how far output and gradients are from it; ends the case where that is too far."""
    objection = soundness.not_finite(result)
    if objection is not None:
        raise Rejection(Incorrect(stage=subject.stage, message=f"{when}{objection}"))
    truth = oracle.truth(subject.problem, call.operands, sampled)
    subject.refuse(oracle.untrue(truth))
    output = oracle.judge_output(truth, result.output)
    gradients = None if result.gradients is None else oracle.judge_gradients(truth, result.gradients)
    wrong = [str(agreement) for agreement in (output, gradients) if agreement is not None and not agreement.holds]
    if wrong:
        message = f"{when}{'; '.join(wrong)}"
        raise Rejection(Incorrect(stage=subject.stage, message=message, **_errors(output, gradients)))
    return truth, output, gradients


def _weigh(subject: Subject, built: Built, first: First, profiled: Profiled) -> list[Profiled]:
    """The same call again, until it has been weighed three times; and some more, if they are short.

    The first result is in use all the while: where results go round in a ring of buffers, one comes to lie on it.
    """
    subject.enter("memory")
    call = first.dense(built.base)
    weighings = [profiled, *(subject.weigh(call) for _ in range(_WEIGHINGS - 1))]
    peaks = [weighing.weight.peak_bytes for weighing in weighings]
    if len(set(peaks)) > 1 and not subject.variant.stochastic:
        subject.refuse(f"calls on the same inputs peak at {peaks} bytes, and the variant is not declared stochastic")
    seconds = min(weighing.seconds for weighing in weighings)
    more = (soundness.address_of(call.whole().output) for _ in range(min(_MORE_CALLS, int(_MORE_SECONDS / seconds))))
    addresses = [*(weighing.output_address for weighing in weighings), *more]
    subject.refuse(soundness.reused(first.result.output, addresses))
    subject.refuse(soundness.changed_inputs(first.call.operands, built.base))
    return weighings


def _kept_by_each_call(subject: Subject, call: Call, weighings: list[Profiled]) -> list[str]:
    """A note, where every call leaves something behind, which is no mere garbage that the collector would free."""
    if min(weighing.left_bytes for weighing in weighings) <= 0:
        return []
    gc.collect()
    left_bytes = subject.weigh(call, collect=True).left_bytes
    return [f"keeps {wording.size(left_bytes)} more with each call"] if left_bytes > 0 else []


def _time(subject: Subject, built: Built, call_seconds: float) -> Timing:
    subject.enter("time")
    later_graphs = max(0, compilation.so_far().graphs - built.compiled.graphs)
    compilation.restart()
    scatter = scatterer(built.attend, built.base, subject.workload.mode)
    budget = subject.settings.time_budget_seconds
    if subject.on_cuda:
        timing = time_on_cuda(scatter, cuda.runtime(), call_seconds=call_seconds, budget_seconds=budget)
    else:
        timing = time_on_cpu(scatter, call_seconds=call_seconds, budget_seconds=budget)
    timing.notes.extend(compilation.again())
    recompiles = later_graphs + compilation.so_far().graphs
    if built.compiled.graphs or recompiles:
        timing.conditions.update(recompiles=recompiles, graph_breaks=built.compiled.graph_breaks)
    return timing


def _check_again(subject: Subject, call: Call) -> None:
    """Other values at the addresses that were timed last: a result kept from an earlier call would be wrong now."""
    call.operands.reverse_in_place()
    sampled = rows.sample(subject.workload, min(_LATER_ROWS, rows.how_many(subject.workload)))
    again = replace(call, operands=oracle.only_on(sampled, call.operands))
    _judge(subject, again, again.whole(), sampled, _LATER)
    subject.refuse_changed_state()


# --- the record ---------------------------------------------------------------------------------------------------


class _Errors(TypedDict):
    """The fields of a record that say how wrong a result is."""

    own_error: float | None
    tolerance: float | None
    gradient_error: float | None
    gradient_tolerance: float | None


def _errors(output: Agreement | None, gradients: Agreement | None) -> _Errors:
    return {
        "own_error": None if output is None else output.error,
        "tolerance": None if output is None else output.tolerance,
        "gradient_error": None if gradients is None else gradients.error,
        "gradient_tolerance": None if gradients is None else gradients.tolerance,
    }


def _record(subject: Subject, built: Built, verdict: Verdict | None, dispatched: list[str]) -> Measured:
    return Measured(
        seconds=[],
        timer="none",
        peak_bytes=None,
        setup_seconds=built.setup_seconds,
        first_call_seconds=built.first_call_seconds,
        compile_seconds=built.compiled.seconds or None,
        fidelity=None if verdict is None else verdict.fidelity,
        attention_map=None if verdict is None else verdict.attention_map,
        useful_flops=work.useful_flops(subject.workload),
        issued_flops=answers.flops(subject.variant, subject.workload, subject.parameters),
        dispatched=dispatch.readable(dispatched),
        notes=[
            *fits.notes(subject.workload),
            *(["compiled code came from a cache"] if built.compiled.cache_hits else []),
        ],
        **(_errors(None, None) if verdict is None else _errors(verdict.output, verdict.gradients)),
    )


def _with_figures(record: Measured, built: Built, weighings: list[Profiled], timing: Timing) -> Measured:
    """With the heaviest weight, the times, and in ``own_seconds`` how long all of it was in the variant's own code."""
    weight = max((weighing.weight for weighing in weighings), key=lambda weight: weight.peak_bytes)
    return msgspec.structs.replace(
        _with_times(record, timing, built.setup_seconds + sum(weighing.seconds for weighing in weighings)),
        peak_bytes=weight.peak_bytes,
        output_bytes=weight.output_bytes,
        saved_bytes=weight.saved_bytes,
        workspace_bytes=weight.workspace_bytes,
        reserved_bytes=weight.reserved_bytes,
    )


def _with_times(record: Measured, timing: Timing, before_seconds: float) -> Measured:
    """``before_seconds`` is what the variant's own code took before the clock ran."""
    return msgspec.structs.replace(
        record,
        seconds=timing.seconds,
        seconds_warm=timing.warm,
        seconds_graph=timing.graph,
        timer=timing.timer,
        settled=timing.settled,
        dropped_share=timing.dropped_share,
        conditions={**timing.conditions, "own_seconds": round(before_seconds + timing.own_seconds, 4)},
        notes=[*record.notes, *timing.notes],
    )


def _with_roofline(record: Measured, subject: Subject, ceilings: Mapping[str, float]) -> Measured:
    roofline = work.roofline(
        subject.workload,
        subject.variant.uses,
        issued_flops=record.issued_flops,
        seconds=statistics.median(record.seconds),
        ceilings=ceilings,
    )
    if roofline is None:
        return record
    notes = list(record.notes)
    if roofline.fraction > _ABOVE_CEILING:
        notes.append(f"{roofline.fraction:.0%} of the measured ceiling: FLOP count, ceiling or time cannot be right")
    return msgspec.structs.replace(record, roofline_fraction=roofline.fraction, bound=roofline.bound, notes=notes)
