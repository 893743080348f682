"""Which trials are to be made, and the worker processes that make them. Nothing here imports torch.

A trial is a variant inside a model: dropped into the shipped encoder, or trained with a small one for a task.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import WrongUsageError
from bench.fidelity.trial import DROP_IN, NO_ATTENTION, TASK, Replaced, Trained, TrialCase, TrialOutcome, TrialRecord
from bench.record import About, Settings, Timeout, Unsupported, storable
from bench.sweep import messages, plan, progress
from bench.sweep.plan import Resolver
from bench.sweep.progress import Reporter
from bench.sweep.session import Session
from bench.sweep.suite import Parameters, Sweep
from bench.sweep.supervisor import ENGINE, LostError, Supervised
from variants._contract import Workload


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: tasks (``drop_in`` is one) by variants, lengths and seeds."""

    task: tuple[str, ...]
    variants: tuple[str, ...]
    skip: tuple[str, ...] = ()
    seq_len: tuple[int, ...] = (128,)
    seed: tuple[int, ...] = (0,)
    batch: int = 32
    steps: int = 2000
    pairs: int = 16
    documents: int = 160
    mask: str = "full"
    param: Parameters = {}


NOTHING = About(family="floor", exact=False, summary="No attention at all: zeros in its place.")

# What the encoder and the small model are, without torch to ask.
_ENCODER_HEADS, _ENCODER_HEAD_DIM, _ENCODER_BATCH = 12, 32, 8
_MODEL_HEADS, _MODEL_HEAD_DIM = 1, 64

# Seconds for a token of a training step, and of a document in both encoders: rough, for the time that is left.
_TRAINED_TOKEN_SECONDS, _EMBEDDED_TOKEN_SECONDS = 1.7e-5, 3e-4
_STEP = re.compile(r"step (\d+) of (\d+)")


# --- which --------------------------------------------------------------------------------------------------------


def cases(trials: Sequence[Trial], names: Sequence[str], device: str, resolve: Resolver) -> list[TrialCase]:
    """Every trial once; seeds last, so that what is cut short has all variants of the first seed.

    Raises:
        WrongUsageError: an unknown variant, or nothing left to try.

    """
    found = [case for trial in trials for case in _cases(trial, names, device.partition(":")[0], resolve)]
    unique = list({case.key(): case for case in found}.values())
    if trials and not unique:
        raise WrongUsageError("expected at least one variant, and everything chosen is skipped")
    return sorted(unique, key=lambda case: case.workload.seed)


def _cases(trial: Trial, names: Sequence[str], device: str, resolve: Resolver) -> Iterator[TrialCase]:
    known = [*names, NO_ATTENTION]
    sweep = Sweep(variants=trial.variants, skip=trial.skip)
    plan.check_chosen(trial.param, plan.selected(sweep, known))
    for task in trial.task:
        for variant in plan.selected(sweep, known):
            if (task == DROP_IN) and variant == NO_ATTENTION:
                continue
            for parameters in plan.combinations(trial.param.get(variant, {})):
                full = {} if variant == NO_ATTENTION else resolve(variant, parameters)
                for length in trial.seq_len:
                    for seed in trial.seed:
                        yield _case(trial, task, variant, full, length=length, seed=seed, device=device)


def _case(
    trial: Trial, task: str, variant: str, parameters: dict[str, Any], *, length: int, seed: int, device: str
) -> TrialCase:
    is_drop_in = task == DROP_IN
    heads = _ENCODER_HEADS if is_drop_in else _MODEL_HEADS
    options: dict[str, int | float] = {"documents": trial.documents} if is_drop_in else {"steps": trial.steps}
    if task == "recall":
        options["pairs"] = trial.pairs
    workload = Workload(
        batch=_ENCODER_BATCH if is_drop_in else trial.batch,
        heads=heads,
        kv_heads=heads,
        query_length=length,
        key_length=length,
        head_dim=_ENCODER_HEAD_DIM if is_drop_in else _MODEL_HEAD_DIM,
        device=device,
        mask="full" if is_drop_in else trial.mask,
        mode="fwd" if is_drop_in else "fwd_bwd",
        inputs="news" if is_drop_in else task,
        seed=seed,
    )
    return TrialCase(
        kind=DROP_IN if is_drop_in else TASK,
        task="news" if is_drop_in else task,
        variant=variant,
        parameters=parameters,
        workload=workload,
        options=options,
    )


def missing(every: Sequence[TrialCase], records: Sequence[TrialRecord], retry: Sequence[str]) -> list[TrialCase]:
    """Those without a record, and those whose record has a status to ``retry``."""
    there = {record.case.key() for record in records if record.status not in retry}
    return [case for case in every if case.key() not in there]


# --- in workers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where and how trials are made. ``files``: of variants that are not built in. ``checkpoints``: a folder."""

    device: str
    settings: Settings
    timeout_seconds: float
    files: Mapping[str, str | None]
    checkpoints: Path
    engine: str = ENGINE

    def checkpoint(self, case: TrialCase) -> Path:
        """Where the training of a case is kept while it goes on."""
        return self.checkpoints / f"{hashlib.sha256(case.key().encode()).hexdigest()[:16]}.pt"


def outcomes(
    every: Sequence[TrialCase], bench: Bench, on_stage: Callable[[TrialCase, str], None] = lambda *_: None
) -> Iterator[tuple[TrialCase, TrialOutcome]]:
    """What became of each trial, as soon as that is known; the next begins when the next is asked for.

    Trainings get a process each, so that they repeat to the bit; drop-ins share one, which embeds exactly but once.
    """
    worker: Supervised | None = None
    try:
        for case in every:
            if worker is not None and case.kind == TASK:
                worker.end()
                worker = None
            if worker is None:
                worker = Supervised(engine=bench.engine, threads=bench.settings.threads).__enter__()
            try:
                outcome = _tried(worker, case, bench, on_stage)
            except LostError as lost:
                worker, outcome = None, lost.outcome
            yield case, outcome
            # one that ran out of time may go on with --retry timeout
            if not isinstance(outcome, Timeout):
                bench.checkpoint(case).unlink(missing_ok=True)
    finally:
        if worker is not None:
            worker.end()
        with contextlib.suppress(OSError):  # it was never made, or something is kept there
            bench.checkpoints.rmdir()


def _tried(
    worker: Supervised, case: TrialCase, bench: Bench, on_stage: Callable[[TrialCase, str], None]
) -> TrialOutcome:
    request = messages.Try(
        case=case,
        file=bench.files.get(case.variant),
        device=bench.device,
        settings=bench.settings,
        checkpoint=str(bench.checkpoint(case)) if case.kind == TASK else None,
    )
    reply = worker.ask(request, timeout_seconds=bench.timeout_seconds, on_stage=lambda stage: on_stage(case, stage))
    assert isinstance(reply, messages.Tried)  # noqa: S101  # a worker of ours answers what it is asked
    return reply.outcome


def record(session: Session, case: TrialCase, outcome: TrialOutcome) -> TrialRecord:
    """The line of a trial; failed if the outcome holds a number that no record may hold."""
    about = NOTHING if case.variant == NO_ATTENTION else session.about[case.variant]
    return storable(TrialRecord(case=case, outcome=outcome, about=about, **session.stamp()))


# --- how far ------------------------------------------------------------------------------------------------------


def expected_seconds(case: TrialCase) -> float:
    """Roughly; a training may be solved earlier."""
    if case.kind == DROP_IN:
        return case.options["documents"] * case.workload.query_length * _EMBEDDED_TOKEN_SECONDS
    return case.options["steps"] * case.workload.batch * case.workload.query_length * _TRAINED_TOKEN_SECONDS


class TrialReporter(Reporter):
    """Tells of trials as they are made; a training moves the bar with its steps."""

    def __init__(self, every: Sequence[TrialCase]) -> None:
        super().__init__([plan.Cell(case, 0) for case in every], lambda cell: expected_seconds(_trial(cell)))
        self._before = 0.0

    def step(self, case: TrialCase, stage: str) -> None:
        """A trial has come to a stage."""
        self.stage(plan.Cell(case, 0), stage)
        if match := _STEP.match(stage):
            share = int(match[1]) / int(match[2])
            self._bar.update(self._task, completed=self._before + share * expected_seconds(case))

    def ended(self, case: TrialCase, outcome: TrialOutcome) -> None:
        """There is an outcome, and it is on disk."""
        self._done += 1
        self._before += expected_seconds(case)
        self._bar.update(self._task, completed=self._before)
        name = f"{case.task} {progress.name_of(plan.Cell(case, 0))} seed {case.workload.seed}"
        self._console.print(f"{self._done}/{self._count} {name}: {told(outcome)}", markup=False, soft_wrap=True)


def told(outcome: TrialOutcome) -> str:
    """An outcome in a line."""
    match outcome:
        case Trained():
            target = "" if outcome.steps_to_target is None else f", 90% at step {outcome.steps_to_target}"
            return f"{outcome.final_accuracy:.1%} after {outcome.steps} steps in {outcome.seconds:.0f} s{target}"
        case Unsupported():
            return f"unsupported: {'; '.join(outcome.reasons)}"
        case Replaced():
            return f"cosine {outcome.cosine:.3f}, {outcome.neighbours_kept:.0%} of neighbours kept"
        case _:
            return f"{type(outcome).__struct_config__.tag} ({outcome.stage}): {outcome.message}"


def _trial(cell: plan.Cell) -> TrialCase:
    assert isinstance(cell.case, TrialCase)  # noqa: S101  # we made it so
    return cell.case
