"""Trials beside each other: a table for each task and length, or the reason why they rank nothing. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from bench import wording
from bench.fidelity.trial import DROP_IN, Replaced, Trained, TrialCase, TrialRecord
from bench.record import Unsupported

CHANCE = "chance"
UNRANKED = ", so nothing is ranked"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text. With a ``refusal`` the rows stand in no order of merit."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    refusal: str | None = None


def tables(records: Sequence[TrialRecord]) -> list[Table]:
    """One for every task and shape, in order of appearance."""
    return [table(found) for found in groups(records)]


def groups(records: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    """Trials that differ in variant, parameters and seed alone: those of one task, shape and machine."""
    found: dict[tuple[object, ...], list[TrialRecord]] = {}
    for record in records:
        case, shape = record.case, record.case.workload
        options = tuple(sorted(case.options.items()))
        where = (shape.query_length, shape.batch, shape.mask, shape.device, record.host.fingerprint)
        found.setdefault((case.kind, case.task, *where, options), []).append(record)
    return list(found.values())


def table(group: Sequence[TrialRecord]) -> Table:
    """Of the trials of one group, a row a variant."""
    return _drop_in(group) if group[0].case.kind == DROP_IN else _task(group)


def by_variant(records: Sequence[TrialRecord]) -> dict[str, list[TrialRecord]]:
    """By name and parameters, in order of appearance."""
    found: dict[str, list[TrialRecord]] = {}
    for record in records:
        parameters = " ".join(f"{name}={value}" for name, value in record.case.parameters.items())
        found.setdefault(f"{record.case.variant} {parameters}".strip(), []).append(record)
    return found


def unsupported(records: Sequence[TrialRecord]) -> str | None:
    """How many of some trials cannot be made, and why; None if all can."""
    against = [record.outcome for record in records if isinstance(record.outcome, Unsupported)]
    if not against:
        return None
    reasons = wording.reasons(reason for outcome in against for reason in outcome.reasons)
    verb = "is" if len(records) == 1 else "are"
    return f"{len(against)} of {wording.counted(len(records), 'trial')} {verb} unsupported: {reasons}"


def _preliminary(records: Sequence[TrialRecord]) -> str:
    return "; one seed: preliminary" if len({record.case.workload.seed for record in records}) == 1 else ""


# --- trained ------------------------------------------------------------------------------------------------------


def refusal(records: Sequence[TrialRecord]) -> str | None:
    """Why the variants of one task cannot be compared: exact attention did not solve it on every seed."""
    task = records[0].case.task
    if all(isinstance(record.outcome, Unsupported) for record in records):
        return f"{task}: {unsupported(records)}"
    exact = [record for record in records if record.about.exact]
    if not exact:
        return f"{task}: no exact attention among the variants, so nothing says that the task can be solved; add one"
    for name, found in by_variant(exact).items():
        failed = [record.case.workload.seed for record in found if not _is_solved(record)]
        if failed:
            seeds = ", ".join(map(str, failed))
            return f"{task}: {name} does not reach 90% on seed {seeds}{UNRANKED}; give more --steps"
    return None


def _is_solved(record: TrialRecord) -> bool:
    return isinstance(record.outcome, Trained) and record.outcome.solved


def _task(records: Sequence[TrialRecord]) -> Table:
    case = records[0].case
    why = refusal(records)
    rows = []
    for name, found in by_variant(records).items():
        ends = [record.outcome for record in found if isinstance(record.outcome, Trained)]
        other = ", ".join(sorted({record.status.replace("_", " ") for record in found} - {"trained"}))
        accuracy = statistics.mean(end.final_accuracy for end in ends) if ends else -1.0
        rows.append((accuracy, [name, *_trained(ends), other]))
    chance = next((record.outcome.chance for record in records if isinstance(record.outcome, Trained)), None)
    if chance is not None:
        rows.append((chance, [CHANCE, f"{chance:.3f}", *[""] * 5]))
    if why is None:
        rows.sort(key=lambda row: -row[0])
    title = f"{case.task}, {_shape(case)}, at most {case.options['steps']} steps of {case.workload.batch}"
    if chance is not None:
        title += f"; chance {chance:.1%}"
    title += _preliminary(records)
    columns = ["variant", "final accuracy", "least", "seeds at 90%", "steps to 90%", "seconds to 90%", "not trained"]
    return Table(title, columns, [row for _, row in rows], why)


def _shape(case: TrialCase) -> str:
    """The length, and what else there is: tables of one task differ in that."""
    mask = [] if case.workload.mask == "full" else [case.workload.mask]
    others = [f"{value:g} {name}" for name, value in sorted(case.options.items()) if name != "steps"]
    return ", ".join([f"N = {case.workload.query_length}", *mask, *others])


def _trained(ends: Sequence[Trained]) -> list[str]:
    if not ends:
        return [""] * 5
    final = [end.final_accuracy for end in ends]
    steps = [end.steps_to_target for end in ends if end.steps_to_target is not None]
    seconds = [end.seconds_to_target for end in ends if end.seconds_to_target is not None]
    return [
        f"{statistics.mean(final):.3f}",
        f"{min(final):.3f}",
        f"{len(steps)} of {len(ends)}",
        f"{statistics.median(steps):.0f}" if steps else "—",
        f"{statistics.median(seconds):.0f}" if seconds else "—",
    ]


# --- dropped in ---------------------------------------------------------------------------------------------------


def _drop_in(records: Sequence[TrialRecord]) -> Table:
    rows = []
    for name, found in by_variant(records).items():
        ends = [record.outcome for record in found if isinstance(record.outcome, Replaced)]
        if ends:
            rows.append((statistics.mean(end.cosine for end in ends), [name, *_replaced(ends)]))
        else:
            rows.append((-2.0, [name, *[""] * 6, found[0].status.replace("_", " ")]))
    rows.sort(key=lambda row: -row[0])
    case = records[0].case
    ends = [record.outcome for record in records if isinstance(record.outcome, Replaced)]
    title = f"dropped into all layers, {case.workload.query_length} tokens"
    if ends:
        exact = interval(ends[0].exact_accuracy)
        title += f", {ends[0].documents} documents; different documents {ends[0].apart:.2f}; exact accuracy {exact}"
    title += _preliminary(records)
    columns = ["variant", "cosine", "least", "neighbours", "rank correlation", "accuracy", "moved accuracy", "moved F1"]
    return Table(title, columns, [row for _, row in rows])


def _replaced(ends: Sequence[Replaced]) -> list[str]:
    ranks = [end.rank_correlation for end in ends if end.rank_correlation is not None]
    return [
        wording.cosine(statistics.mean(end.cosine for end in ends)),
        wording.cosine(min(end.least_cosine for end in ends)),
        f"{statistics.mean(end.neighbours_kept for end in ends):.2f}",
        f"{statistics.mean(ranks):.2f}" if ranks else "—",
        interval([score for end in ends for score in end.accuracy]),
        interval([score for end in ends for score in end.moved_accuracy]),
        interval([score for end in ends for score in end.moved_macro_f1]),
    ]


def interval(scores: Sequence[float]) -> str:
    """Mean and 95% interval over seeds, by Student's t."""
    mean = statistics.mean(scores)
    if len(scores) < 2:  # noqa: PLR2004  # no spread in one
        return f"{mean:.3f}"
    half = float(special.stdtrit(len(scores) - 1, 0.975)) * statistics.stdev(scores) / len(scores) ** 0.5
    return f"{mean:.3f} ± {half:.3f}"
