"""What a sweep may take, before it runs. Rough: right within a factor of a few, enough to plan an evening by.

A call is taken to reach a third of what the machine was just measured to do at best, and memory to be that of the
claimed exponent: score matrices where it is two, a few times the inputs and outputs below. What is *measured* never
comes from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bench.fidelity.trial import DROP_IN, TASK, TrialCase
from bench.record import About, Case
from bench.sweep import trials
from bench.sweep.blueprint import Blueprint
from bench.sweep.messages import Prospect
from bench.sweep.plan import Cell

WORKER_SECONDS = 3.0

_SHARE_OF_CEILING = 1 / 3
_CALLS_BESIDES_TIMING = 8
_FEWEST_TIMED_CALLS = 3
_CASE_SECONDS = 0.2
_SCORE_MATRICES = {"fwd": 2, "bwd": 4, "fwd_bwd": 4}
_TIMES_TRAFFIC = 2
_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class Guess(NamedTuple):
    """Rough: seconds of one call, seconds of the whole case, bytes that a call adds at its peak. None: no idea."""

    call_seconds: float | None
    case_seconds: float
    peak_bytes: int | None


def guess(
    case: Case, about: About, prospect: Prospect, ceilings: Mapping[str, float], time_budget_seconds: float
) -> Guess:
    """What measuring a case may take."""
    call = _call_seconds(case, prospect, ceilings)
    timed = max(time_budget_seconds, _FEWEST_TIMED_CALLS * (call or 0.0))
    return Guess(
        call_seconds=call,
        case_seconds=_CASE_SECONDS + timed + _CALLS_BESIDES_TIMING * (call or 0.0),
        peak_bytes=_peak_bytes(case, about, prospect),
    )


def guesses(blueprint: Blueprint, ceilings: Mapping[str, float]) -> dict[str, Guess]:
    """A guess for every case, by its key."""
    return {
        case.key(): guess(
            case,
            blueprint.entries[case.variant].about,
            blueprint.prospects[case.key()],
            ceilings,
            blueprint.suite.time_budget_seconds,
        )
        for case in blueprint.cases
    }


def sweep_seconds(cells: Iterable[Cell], guesses: Mapping[str, Guess]) -> float:
    """What all cells may take, with a worker for each variant in each replicate. ``guesses`` by the key of the case."""
    cells = list(cells)
    workers = {(cell.case.variant, cell.process) for cell in cells}
    return WORKER_SECONDS * len(workers) + sum(guesses[cell.case.key()].case_seconds for cell in cells)


def trials_seconds(every: Sequence[TrialCase]) -> float:
    """What all trials may take, with a worker for each training and one for drop-ins."""
    workers = sum(case.kind == TASK for case in every) + any(case.kind == DROP_IN for case in every)
    return WORKER_SECONDS * workers + sum(map(trials.expected_seconds, every))


def _call_seconds(case: Case, prospect: Prospect, ceilings: Mapping[str, float]) -> float | None:
    compute = ceilings.get(f"matmul_flops_per_second:{case.workload.dtype}")
    bandwidth = ceilings.get("copy_bytes_per_second")
    if not compute or not bandwidth or prospect.issued_flops is None or prospect.least_traffic_bytes is None:
        return None
    return max(prospect.issued_flops / compute, prospect.least_traffic_bytes / bandwidth) / _SHARE_OF_CEILING


def _peak_bytes(case: Case, about: About, prospect: Prospect) -> int | None:
    if prospect.least_traffic_bytes is None or about.memory_exponent is None:
        return None
    linear = _TIMES_TRAFFIC * prospect.least_traffic_bytes
    if about.memory_exponent <= 1:
        return linear
    workload = case.workload
    pairs = workload.batch * workload.heads * workload.query_length * workload.key_length
    return linear + _SCORE_MATRICES[workload.mode] * pairs * _ITEM_BYTES[workload.dtype]
