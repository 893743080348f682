"""Attentions inside a model: dropped into an encoder, and trained on tasks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pandas as pd

from bench import wording
from bench.fidelity import comparison
from bench.fidelity.trial import DROP_IN, NO_ATTENTION, Attention, Replaced, Trained, TrialRecord
from bench.record import Unsupported
from bench.report import markdown, sentence, tables
from bench.report.gallery import PictureFile, named
from bench.report.gaps import STATUSES
from bench.report.sentence import Panel

_ENDED_WELL = ("replaced", "trained")


def ended_well(trials: Sequence[TrialRecord]) -> int:
    """How many came to a result."""
    return sum(record.status in _ENDED_WELL for record in trials)


# --- results ------------------------------------------------------------------------------------------------------


def results(group: Sequence[TrialRecord]) -> str:
    """The table of one task and shape, under its title; where nothing may be ranked the reason instead of an order."""
    table = comparison.table(group)
    name, *columns = table.columns
    rows = [[markdown.code(row[0]) if row[0] != comparison.CHANCE else row[0], *row[1:]] for row in table.rows]
    used = [at for at in range(len(columns)) if any(row[at + 1] for row in rows)]
    parts = [f"**{markdown.text(table.title[:1].upper() + table.title[1:])}**"]
    if table.refusal:
        why = table.refusal.replace(comparison.UNRANKED, "")
        parts.append(f"> [!WARNING]\n> Nothing is ranked: {markdown.text(why)}.")
    parts.append(
        markdown.table([name, *(columns[at] for at in used)], [[row[0], *(row[at + 1] for at in used)] for row in rows])
    )
    parts.append(_note(group))
    return "\n\n".join(part for part in parts if part)


def _note(group: Sequence[TrialRecord]) -> str:
    if group[0].case.kind == DROP_IN:
        return (
            "The variant takes the place of attention in every layer, not trained for it. *Cosine*: of both embeddings "
            "of a document, the mean and the least. *Accuracy*: of a classifier that was trained on the variant's "
            "embeddings, *moved* of one that was trained on the exact encoder's. ± is the 95% interval over seeds."
        )
    if not any(record.case.variant == NO_ATTENTION for record in group):
        return f"`{NO_ATTENTION}` was not trained, so it is not known what the rest of the model does alone."
    return ""


# --- weights ------------------------------------------------------------------------------------------------------


def seen(group: Sequence[TrialRecord]) -> dict[str, list[Attention]]:
    """What was recorded of the weights inside the encoder, by variant; the exact ones, which are alike, only once."""
    found: dict[str, list[Attention]] = {}
    for label, records in comparison.by_variant(group).items():
        for record in sorted(records, key=lambda record: record.case.workload.seed):
            if isinstance(record.outcome, Replaced) and record.outcome.attention and not record.about.exact:
                found.setdefault(label, []).append(record.outcome.attention)
    return dict(sorted(found.items(), key=lambda item: _mean(item[1], lambda one: one.rollout_total_variation)))


def weights(group: Sequence[TrialRecord]) -> str:
    """How the weights differ, means over seeds; the nearest rollout first. Empty where nothing was recorded."""
    found = seen(group)
    if not found:
        return ""
    every = [one for ones in found.values() for one in ones]
    exact = [
        "exact",
        f"{_mean(every, lambda one: one.exact_entropy):.2f}",
        f"{_mean(every, lambda one: one.exact_distance):.1f}",
        "0",
        "1",
    ]
    rows = [
        [
            markdown.code(label),
            f"{_mean(ones, lambda one: one.entropy):.2f}",
            f"{_mean(ones, lambda one: one.distance):.1f}",
            f"{_mean(ones, lambda one: one.rollout_total_variation):.2f}",
            f"{_mean(ones, lambda one: one.rollout_top10_kept):.2f}",
        ]
        for label, ones in found.items()
    ]
    header = ["weights", "entropy (nats)", "mean distance (tokens)", "rollout: total variation", "rollout: top 10 kept"]
    return markdown.table(header, [exact, *rows])


def _mean(ones: Sequence[Attention], figure: Callable[[Attention], float]) -> float:
    return statistics.mean(map(figure, ones))


def pictures(group: Sequence[TrialRecord], prefix: str) -> Iterator[PictureFile]:
    """Of the first seed: the weights of one layer, and the rollout through all of them."""
    first = {_short(label, group): ones[0] for label, ones in seen(group).items()}
    if not first:
        return
    one = next(iter(first.values()))
    here = {label: found for label, found in first.items() if found.tokens == one.tokens}
    maps = [Panel("exact", one.exact_map), *(Panel(label, found.map) for label, found in here.items())]
    rolled = [Panel("exact", one.exact_rollout), *(Panel(label, found.rollout) for label, found in here.items())]
    length = group[0].case.workload.query_length
    layer = f"layer {one.map_layer + 1}, mean of its heads"
    drawings = {
        "sentence": (maps, f"Who attends to whom in a real sentence · {layer}, N = {length}", "Attention weights"),
        "rollout": (rolled, f"Attention rollout through all layers · N = {length}", "Attention rollout"),
    }
    for name, (panels, title, words) in drawings.items():
        alt = f"{words} between the first tokens of a document, of exact attention and of each approximation"
        yield from named(f"{prefix}{name}", alt, sentence.draw(panels, one.tokens, title))


def _short(label: str, group: Sequence[TrialRecord]) -> str:
    """Without parameters where the variant has but one set of them."""
    variant = label.partition(" ")[0]
    return variant if sum(other.partition(" ")[0] == variant for other in comparison.by_variant(group)) == 1 else label


# --- what did not end, and where it was tried ---------------------------------------------------------------------


def failures(trials: Sequence[TrialRecord]) -> str:
    """Trials without a result, and why."""
    found: dict[tuple[str, str], list[TrialRecord]] = {}
    for record in trials:
        match record.outcome:
            case Replaced() | Trained():
                continue
            case Unsupported(reasons=reasons):
                why = "; ".join(reasons)
            case outcome:
                why = f"{outcome.stage}: {outcome.message}"
        found.setdefault((record.status, why), []).append(record)
    rows = [
        [
            STATUSES[status],  # type: ignore[index]  # what is left are the statuses of a bare attention
            markdown.text(why),
            ", ".join(map(markdown.code, comparison.by_variant(records))),
            ", ".join(dict.fromkeys(_tried(record) for record in records)),
        ]
        for (status, why), records in found.items()
    ]
    return markdown.table(["no result", "why", "variants", "where"], rows, left=4)


def _tried(record: TrialRecord) -> str:
    length = wording.length(record.case.workload.query_length)
    return f"{'dropped in' if record.case.kind == DROP_IN else markdown.text(record.case.task)}, {length}"


def conditions(trials: Sequence[TrialRecord]) -> str:
    """On what the trials ran, and with which code."""
    facts: dict[str, dict[str, None]] = {}
    for record in trials:
        source, settings = record.source, record.settings
        dirty = " with uncommitted changes" if source.dirty else ""
        versions = ", ".join(f"{name} {version}" for name, version in sorted(source.versions.items()))
        told = {
            "device": record.host.device_name,
            "threads": str(settings.threads),
            "timeout per trial": wording.duration(settings.timeout_seconds) if settings.timeout_seconds else "",
            "revision": source.git[:12] + dirty if source.git else "not known",
            "versions": versions,
            "runs": record.run_id,
            "tried": (record.at or "")[:10],
        }
        for fact, value in told.items():
            facts.setdefault(fact, {})[value] = None
    rows = [[fact, markdown.text("; ".join(filter(None, values)))] for fact, values in facts.items() if any(values)]
    return markdown.table(["trials", "value"], rows, left=2)


def headline(trials: Sequence[TrialRecord]) -> str:
    """The approximations that do best when they are dropped in; empty without any."""
    for group in comparison.groups(trials):
        if group[0].case.kind != DROP_IN:
            continue
        found = [
            (record.outcome.cosine, record.case.variant)
            for record in group
            if isinstance(record.outcome, Replaced) and not record.about.exact
        ]
        if found:
            cosine, variant = max(found)
            length = group[0].case.workload.query_length
            keeps = f"{markdown.code(variant)} keeps most: cosine {wording.cosine(cosine)}"
            return f"dropped into an encoder at {length} tokens, {keeps}"
    return ""


def as_csv(trials: Sequence[TrialRecord]) -> bytes:
    """One row a trial; maps and series are in the run files alone."""
    return tables.as_csv(pd.DataFrame([_row(record) for record in trials]))


def _row(record: TrialRecord) -> dict[str, Any]:
    case = record.case
    outcome = {
        name: value
        for name in record.outcome.__struct_fields__
        if not isinstance(value := getattr(record.outcome, name), (list, Attention)) and value is not None
    }
    scores = {
        name: statistics.mean(value)
        for name in ("accuracy", "macro_f1", "moved_accuracy", "moved_macro_f1")
        if (value := getattr(record.outcome, name, None))
    }
    return {
        "run_id": record.run_id,
        "kind": case.kind,
        "task": case.task,
        "variant": case.variant,
        "parameters": msgspec.json.encode(case.parameters, order="sorted").decode(),
        **msgspec.to_builtins(case.workload),
        "options": msgspec.json.encode(case.options, order="sorted").decode(),
        "status": record.status,
        **outcome,
        **scores,
    }
