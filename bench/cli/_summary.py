"""What `run` and `train` say at their end: what became of cases and trials, and where the wall time went."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, get_args

import click

from bench import wording
from bench.cli import _tables
from bench.record import Measured, Record, Status

if TYPE_CHECKING:
    from bench.fidelity.trial import TrialRecord
    from bench.sweep.stations import Spent

_BASELINE = "naive_sdpa"

Seconds = dict[str, dict[str, float]]


def show(records: Sequence[Record], *, baseline: str | None) -> None:
    """A row per variant: statuses, and the geometric mean of its speed-ups over the baseline on equal workloads."""
    label = labels(records)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[label(record)][record.status] += 1
    statuses = [status for status in get_args(Status) if any(counted[status] for counted in counts.values())]
    seconds = medians(records, label)
    over = baseline or _BASELINE
    compared = [f"speed-up over {over}"] if over in seconds else []
    columns = ["variant", *(status.replace("_", " ") for status in statuses), *compared]
    rows = [
        [name, *(str(counted[status] or "") for status in statuses), *(_factor(seconds, name, over) for _ in compared)]
        for name, counted in sorted(counts.items())
    ]
    _tables.show(columns, rows, right=columns[1:])


def labels(records: Sequence[Record]) -> Callable[[Record], str]:
    """Names records by their variant, and by its parameters too where it has several sets of them."""
    sets: dict[str, set[str]] = defaultdict(set)
    for record in records:
        sets[record.case.variant].add(_spell(record))
    return lambda record: " ".join(
        [record.case.variant, *([_spell(record)] if len(sets[record.case.variant]) > 1 else [])]
    )


def _spell(record: Record) -> str:
    return " ".join(f"{name}={value}" for name, value in record.case.parameters.items())


def medians(records: Sequence[Record], label: Callable[[Record], str]) -> Seconds:
    """By label and workload, the median over processes of their median times."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if isinstance(record.outcome, Measured) and record.outcome.seconds:
            found[label(record)][repr(record.case.workload)].append(statistics.median(record.outcome.seconds))
    return {
        name: {workload: statistics.median(values) for workload, values in measured.items()}
        for name, measured in found.items()
    }


def _factor(seconds: Seconds, name: str, over: str) -> str:
    """On how many workloads it is known stands beside it."""
    both = seconds.get(name, {}).keys() & seconds.get(over, {}).keys()
    if not both:
        return ""
    mean = statistics.geometric_mean(seconds[over][workload] / seconds[name][workload] for workload in both)
    return f"{wording.factor(mean)} ({len(both)})"


def show_trials(records: Sequence[TrialRecord]) -> list[str | None]:
    """A table for every task and shape. For each, why it ranks nothing, or None if it does."""
    from bench.fidelity import comparison

    refusals: list[str | None] = []
    for group in comparison.groups(records):
        table = comparison.table(group)
        click.echo(f"\n{table.title}")
        _tables.show(table.columns, table.rows, right=table.columns[1:])
        refusal, against = table.refusal, comparison.unsupported(group)
        if against is not None and all(record.status == "unsupported" for record in group):
            refusal = f"{group[0].case.title}: {against}"
        elif against is not None:
            click.echo(f"{group[0].case.title}: {against}", err=True)
        if refusal is None and not any(record.status in ("trained", "replaced") for record in group):
            reasons = ", ".join(sorted({record.status.replace("_", " ") for record in group}))
            refusal = f"{group[0].case.title}: nothing but {reasons}, as the file says with the reasons"
        if refusal is not None:
            click.echo(f"warning: {refusal}", err=True)
        refusals.append(refusal)
    return refusals


def show_time(
    records: Sequence[Record], measured_now: Collection[tuple[str, int]], spent: Spent, wall_seconds: float
) -> None:
    """Shares of the wall time: the variants' own code, the other stages of cases, worker starts, trials, the rest.

    ``measured_now``: by key of the case and process, of which records there may be more, of earlier replicates.
    """
    now = set(measured_now)
    own = sum(
        float(record.outcome.conditions.get("own_seconds") or 0.0)
        for record in records
        if isinstance(record.outcome, Measured) and record.identity() in now
    )
    inside = sum(spent.stage_seconds.values())
    of_cases = {
        "in the variants' own code": own,
        "checking and preparing cases": max(0.0, inside - own),
        f"starting {wording.counted(spent.workers, 'worker')}": spent.worker_seconds,
    }
    parts = {
        **(of_cases if now else {}),
        **({"in trials": spent.trial_seconds} if spent.trial_seconds else {}),
        "the rest": max(0.0, wall_seconds - inside - spent.worker_seconds - spent.trial_seconds),
    }
    shares = ", ".join(f"{part} {wording.percent(seconds / wall_seconds)}" for part, seconds in parts.items())
    click.echo(f"time  {wording.duration(wall_seconds)}: {shares}")
