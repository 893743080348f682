"""Which trials are to be made, and about how long they take. Nothing here imports torch.

A trial is a variant inside a model: dropped into the shipped encoder, or trained with a small one for a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.fidelity.trial import DROP_IN, NO_ATTENTION, TASK, TrialCase, TrialRecord
from bench.record import About
from bench.sweep import plan
from bench.sweep.plan import Resolver
from bench.sweep.suite import Suite, Trial
from variants._contract import Workload

NOTHING = About(family="floor", exact=False, summary="No attention at all: zeros in its place.")

# What the encoder and the small model are, without torch to ask.
_ENCODER_HEADS, _ENCODER_HEAD_DIM, _ENCODER_BATCH = 12, 32, 8
_MODEL_HEADS, _MODEL_HEAD_DIM = 1, 64

# Seconds for a token of a training step, and of a document in both encoders: rough, for the time that is left.
_TRAINED_TOKEN_SECONDS, _EMBEDDED_TOKEN_SECONDS = 1.7e-5, 3e-4


def cases(suite: Suite, names: Sequence[str], device: str, resolve: Resolver) -> list[TrialCase]:
    """Every trial of a suite once; seeds last, so that what is cut short has all variants of the first seed.

    ``names``: the variants there are; ``resolve``: all parameters of a variant from the given ones.

    Raises:
        WrongUsageError: an unknown variant, or an unusable parameter.

    """
    found = [case for trial in suite.trials for case in _cases(trial, names, device.partition(":")[0], resolve)]
    unique = list({case.key(): case for case in found}.values())
    return sorted(unique, key=lambda case: case.workload.seed)


def _cases(trial: Trial, names: Sequence[str], device: str, resolve: Resolver) -> Iterator[TrialCase]:
    for task in trial.task:
        for variant in plan.selected(trial, [*names, NO_ATTENTION]):
            if task == DROP_IN and variant == NO_ATTENTION:
                continue
            for parameters in plan.combinations(trial.parameters.get(variant, {})):
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


def expected_seconds(case: TrialCase) -> float:
    """Roughly; a training may be solved earlier."""
    if case.kind == DROP_IN:
        return case.options["documents"] * case.workload.query_length * _EMBEDDED_TOKEN_SECONDS
    return case.options["steps"] * case.workload.batch * case.workload.query_length * _TRAINED_TOKEN_SECONDS
