"""A case on its way through the stages, and the ways in which it can end early."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from bench.measure import cuda, torch_state
from bench.measure.memory import Profiled, weigh_cpu, weigh_cuda
from bench.measure.oracle import Problem
from bench.measure.verdicts import Rejection, explain, tidy
from bench.record import Failed

if TYPE_CHECKING:
    from bench.measure.call import Call
    from bench.record import Case, Outcome, Settings, Stage
    from variants._contract import Variant, Workload


@dataclass(slots=True)
class Subject:
    """The case, and the stage that it is in; ``before`` is the state of torch that it may not leave changed."""

    variant: Variant
    workload: Workload
    parameters: Any
    settings: Settings
    on_stage: Callable[[Stage], None]
    before: torch_state.TorchState
    stage: Stage = "start"
    process_id: int = field(default_factory=os.getpid)

    @property
    def problem(self) -> Problem:
        return Problem(self.variant, self.workload, self.parameters)

    @property
    def on_cuda(self) -> bool:
        return self.workload.device.startswith("cuda")

    def enter(self, stage: Stage) -> None:
        """Begin a stage, once it is sure that the one before left torch as it was."""
        self.end_if_forked()
        self.refuse_changed_state()
        self.stage = stage
        self.on_stage(stage)

    def weigh(self, call: Call, *, collect: bool = False) -> Profiled:
        """One call under the profiler of the case's device; see :func:`bench.measure.memory.weigh_cpu`."""
        return weigh_cuda(call, cuda.runtime(), collect=collect) if self.on_cuda else weigh_cpu(call, collect=collect)

    def refuse(self, objection: str | None) -> None:
        """End the case as failed, if there is an objection."""
        if objection is not None:
            raise Rejection(Failed(stage=self.stage, message=tidy(objection)))

    def refuse_changed_state(self) -> None:
        changes = self.before.changes(torch_state.TorchState.now())
        self.refuse(f"it changed torch's global state: {', '.join(changes)}" if changes else None)

    def end_if_forked(self) -> None:
        """A child that the variant forked and let return ends here, lest the case be measured twice."""
        if os.getpid() != self.process_id:
            os._exit(0)


def outcome_of(
    case: Case,
    variant: Variant,
    settings: Settings,
    on_stage: Callable[[Stage], None],
    work: Callable[[Subject], Outcome],
) -> Outcome:
    """What ``work`` returns, or what its end by a rejection or an exception of the variant's means."""
    with torch_state.kept() as state:
        parameters: Any = msgspec.convert(case.parameters, variant.parameters)
        subject = Subject(variant, case.workload, parameters, settings, on_stage, state)
        try:
            return work(subject)
        except Rejection as rejection:
            return rejection.outcome
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a variant may raise anything; it costs its case only
            return explain(error, subject.stage)
        finally:
            subject.end_if_forked()
