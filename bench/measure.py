"""One case: check it, prove what ran, weigh it, time it, check it again → its outcome.

The stages, as they are told to ``on_stage``: ``start``, ``inputs``, ``build``, ``check``, ``memory``, ``time``.
Whatever a variant raises, returns or leaves changed ends as the outcome of its case.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import torch

from bench import dispatch, oracle, rows, soundness, torch_state, work
from bench.call import Call, Operands, Result, scattered
from bench.clock import Series, collect
from bench.clock_cpu import CpuClock, scatterer
from bench.fidelity import fidelity
from bench.memory import Profiled, Weight, weigh_cpu
from bench.oracle import Agreement, Problem
from bench.record import Failed, FellBack, Fidelity, Incorrect, Measured, Unsupported
from bench.verdicts import Rejection, explain, tidy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.record import Case, Outcome, Settings, Stage
    from variants._contract import Attend, Variant, Workload

_WEIGHINGS = 3
_LATER_ROWS = 6
_ABOVE_CEILING = 1.05


def measure(
    case: Case,
    variant: Variant,
    *,
    settings: Settings,
    ceilings: Mapping[str, float],
    on_stage: Callable[[Stage], None],
) -> Outcome:
    """Everything about a case. Never raises for what the variant does; ``on_stage`` is told before a stage begins."""
    return _guarded(case, variant, settings, on_stage, lambda subject: _measured(subject, ceilings))


def check(case: Case, variant: Variant, *, settings: Settings, on_stage: Callable[[Stage], None]) -> Outcome:
    """The oracle and the proof of what ran, without weighing and timing: no ``seconds``, no ``peak_bytes``."""
    return _guarded(case, variant, settings, on_stage, _checked)


@dataclass(slots=True)
class Subject:
    """A case on its way through the stages."""

    variant: Variant
    workload: Workload
    parameters: Any
    settings: Settings
    on_stage: Callable[[Stage], None]
    before: torch_state.TorchState
    stage: Stage = "start"

    @property
    def problem(self) -> Problem:
        return Problem(self.variant, self.workload, self.parameters)

    def enter(self, stage: Stage) -> None:
        """Begin a stage, once it is sure that the one before left torch as it was."""
        self.refuse_changed_state()
        self.stage = stage
        self.on_stage(stage)

    def refuse_changed_state(self) -> None:
        changes = self.before.changes(torch_state.TorchState.now())
        self.refuse(f"it changed torch's global state: {', '.join(changes)}" if changes else None)

    def refuse(self, objection: str | None) -> None:
        """End the case as failed, if there is an objection."""
        if objection is not None:
            raise Rejection(Failed(stage=self.stage, message=tidy(objection)))


@dataclass(frozen=True, slots=True)
class Built:
    """A variant ready to be called, what that took, and its first call with what came of it."""

    attend: Attend
    base: Operands
    setup_seconds: float
    first_call_seconds: float
    first: Call
    result: Result


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the oracle found, all of it within tolerance."""

    output: Agreement
    gradients: Agreement | None
    fidelity: Fidelity


def _guarded(
    case: Case,
    variant: Variant,
    settings: Settings,
    on_stage: Callable[[Stage], None],
    work_on: Callable[[Subject], Outcome],
) -> Outcome:
    with torch_state.kept() as state:
        parameters: Any = msgspec.convert(case.parameters, variant.parameters)
        subject = Subject(variant, case.workload, parameters, settings, on_stage, state)
        try:
            _start(subject)
            return work_on(subject)
        except Rejection as rejection:
            return rejection.outcome
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a variant may raise anything; it costs its case only
            return explain(error, subject.stage)


def _start(subject: Subject) -> None:
    subject.enter("start")
    if subject.before.threads != subject.settings.threads:
        subject.refuse(f"torch runs {subject.before.threads} threads where the settings say {subject.settings.threads}")
    reasons = list(subject.variant.obstacles(subject.workload, subject.parameters))
    if reasons:
        raise Rejection(Unsupported(reasons=reasons))


def _checked(subject: Subject) -> Outcome:
    built = _build(subject)
    verdict, profiled = _check(subject, built)
    return _record(subject, built, verdict, profiled.dispatched)


def _measured(subject: Subject, ceilings: Mapping[str, float]) -> Outcome:
    built = _build(subject)
    verdict, profiled = _check(subject, built)
    weight, call_seconds = _weigh(subject, built, profiled)
    series, timer = _time(subject, built, call_seconds)
    record = _record(subject, built, verdict, profiled.dispatched)
    return _with_roofline(_with_figures(record, weight, series, timer), subject.workload, ceilings)


# --- the stages ---------------------------------------------------------------------------------------------------


def _build(subject: Subject) -> Built:
    """Inputs, the variant, and the first call: on rows of the oracle only, as far as gradients go."""
    from bench import inputs

    subject.enter("inputs")
    made = inputs.make(subject.workload)
    base = Operands(made.query, made.key, made.value, made.upstream)
    sampled = rows.sample(subject.workload, rows.how_many(subject.workload))
    operands = oracle.only_on(sampled, base).fresh(differentiable=subject.workload.mode != "fwd")

    subject.enter("build")
    start = time.perf_counter()
    attend = subject.variant.build(subject.workload, subject.parameters)
    built_at = time.perf_counter()
    first = Call(attend, operands, subject.workload.mode)
    result = _sound(subject, first, base)
    done = time.perf_counter()
    return Built(attend, base, done - start, done - built_at, first, result)


def _sound(subject: Subject, call: Call, base: Operands) -> Result:
    """A call's result, once it is known to be an attention output that left its inputs alone."""
    with torch.set_grad_enabled(call.differentiates):
        output = call.forward()
    subject.refuse(soundness.malformed(output, subject.workload))
    result = Result(output, call.backward(output) if call.differentiates else None)
    subject.refuse(soundness.aliased(result, call.operands))
    subject.refuse(soundness.changed_inputs(call.operands, base))
    return result


def _check(subject: Subject, built: Built) -> tuple[Verdict, Profiled]:
    """The oracle's verdict on the first call, and a second one under the profiler that shows what runs."""
    subject.enter("check")
    sampled = rows.sample(subject.workload, rows.how_many(subject.workload))
    verdict = _judge(subject, built.first, built.result, sampled, "")
    profiled = weigh_cpu(_dense(built))
    subject.refuse(soundness.reused(built.result.output, profiled.output))
    objection = dispatch.fell_back(subject.variant, subject.workload.device, profiled.dispatched)
    if objection is not None:
        dispatched = dispatch.readable(profiled.dispatched)
        raise Rejection(FellBack(stage=subject.stage, message=tidy(objection), dispatched=dispatched))
    return verdict, profiled


def _dense(built: Built) -> Call:
    """The first call's operands under the dense upstream gradient."""
    return replace(built.first, operands=replace(built.first.operands, upstream=built.base.upstream))


def _judge(subject: Subject, call: Call, result: Result, sampled: torch.Tensor, when: str) -> Verdict:
    objection = soundness.not_finite(result)
    if objection is not None:
        raise Rejection(Incorrect(stage=subject.stage, message=f"{when}{objection}"))
    truth = oracle.truth(subject.problem, call.operands, sampled)
    output = oracle.judge_output(truth, result.output)
    gradients = None if result.gradients is None else oracle.judge_gradients(truth, result.gradients)
    wrong = [str(agreement) for agreement in (output, gradients) if agreement is not None and not agreement.holds]
    if wrong:
        raise Rejection(Incorrect(stage=subject.stage, message=when + "; ".join(wrong), **_errors(output, gradients)))
    return Verdict(output, gradients, fidelity(subject.problem, truth, result.output))


class Errors(TypedDict):
    """The fields of a record that say how wrong a result is."""

    own_error: float
    tolerance: float
    gradient_error: float | None
    gradient_tolerance: float | None


def _errors(output: Agreement, gradients: Agreement | None) -> Errors:
    return {
        "own_error": output.error,
        "tolerance": output.tolerance,
        "gradient_error": None if gradients is None else gradients.error,
        "gradient_tolerance": None if gradients is None else gradients.tolerance,
    }


def _weigh(subject: Subject, built: Built, profiled: Profiled) -> tuple[Weight, float]:
    """What a call weighs, three times the same; and how long the quickest of these calls took."""
    subject.enter("memory")
    call = _dense(built)
    weighings = [profiled, *(weigh_cpu(call) for _ in range(_WEIGHINGS - 1))]
    peaks = [weighing.weight.peak_bytes for weighing in weighings]
    if len(set(peaks)) > 1 and not subject.variant.stochastic:
        subject.refuse(
            f"three calls on the same inputs peak at {', '.join(map(str, peaks))} bytes; declare it stochastic"
        )
    subject.refuse(soundness.changed_inputs(call.operands, built.base))
    heaviest = max((weighing.weight for weighing in weighings), key=lambda weight: weight.peak_bytes)
    return heaviest, min(weighing.seconds for weighing in weighings)


def _time(subject: Subject, built: Built, call_seconds: float) -> tuple[Series, str]:
    subject.enter("time")
    mode = subject.workload.mode
    scatter = scatterer(lambda draw: scattered(built.attend, built.base, mode, draw))
    clock = CpuClock(scatter, call_seconds=call_seconds)
    series = collect(clock, budget_seconds=subject.settings.time_budget_seconds, call_seconds=call_seconds)
    _check_again(subject, clock.last_call)
    return series, clock.timer


def _check_again(subject: Subject, call: Call) -> None:
    """Other values at the addresses that were timed last: a result kept from an earlier call would be wrong now."""
    call.operands.reversed_in_place()
    sampled = rows.sample(subject.workload, min(_LATER_ROWS, rows.how_many(subject.workload)))
    again = replace(call, operands=oracle.only_on(sampled, call.operands))
    _judge(subject, again, again.whole(), sampled, "right at first, wrong after timing, on new values in old places: ")
    subject.refuse_changed_state()


# --- the record ---------------------------------------------------------------------------------------------------


def _record(subject: Subject, built: Built, verdict: Verdict, dispatched: list[str]) -> Measured:
    issued = subject.variant.flops(subject.workload, subject.parameters)
    if issued <= 0:
        subject.refuse(f"the variant counts {issued} FLOPs; a count must be above zero")
    return Measured(
        seconds=[],
        timer="none",
        peak_bytes=None,
        setup_seconds=built.setup_seconds,
        first_call_seconds=built.first_call_seconds,
        fidelity=verdict.fidelity,
        useful_flops=work.useful_flops(subject.workload),
        issued_flops=issued,
        dispatched=dispatch.readable(dispatched),
        **_errors(verdict.output, verdict.gradients),
    )


def _with_figures(record: Measured, weight: Weight, series: Series, timer: str) -> Measured:
    return msgspec.structs.replace(
        record,
        seconds=series.seconds,
        timer=timer,
        settled=series.settled,
        dropped_share=series.dropped_share,
        peak_bytes=weight.peak_bytes,
        output_bytes=weight.output_bytes,
        saved_bytes=weight.saved_bytes,
        workspace_bytes=weight.workspace_bytes,
        reserved_bytes=weight.reserved_bytes,
        notes=[*record.notes, *series.notes],
    )


def _with_roofline(record: Measured, workload: Workload, ceilings: Mapping[str, float]) -> Measured:
    roofline = work.roofline(
        workload,
        issued_flops=record.issued_flops,
        seconds=statistics.median(record.seconds),
        ceilings=ceilings,
    )
    if roofline is None:
        return record
    notes = list(record.notes)
    if roofline.fraction > _ABOVE_CEILING:
        notes.append(
            f"{roofline.fraction:.0%} of the measured ceiling: the FLOP count, the ceiling or the time is wrong"
        )
    return msgspec.structs.replace(record, roofline_fraction=roofline.fraction, bound=roofline.bound, notes=notes)
