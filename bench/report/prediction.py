"""Which figure of a bare attention predicts what happens when it is dropped into a model?

Spearman's rank correlation over approximations, signs turned so that 1 means: the better the figure, the better the
drop-in. Exact attention is left out: it is at one end of both, and would agree with anything.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench import wording
from bench.fidelity import comparison
from bench.fidelity.trial import DROP_IN, Replaced, TrialRecord
from bench.record import Fidelity
from bench.report import markdown, sources
from bench.report.sources import Family, Place

FEWEST = 5
_NOTHING = "–"

_METRICS: Mapping[str, tuple[int, Callable[[Fidelity], float | None]]] = {
    "relative error": (-1, lambda fidelity: fidelity.relative_error),
    "cosine": (1, lambda fidelity: fidelity.cosine),
    "spectral error": (-1, lambda fidelity: fidelity.spectral_error),
    "overlap": (1, lambda fidelity: fidelity.overlap),
    "top-8 recall": (1, lambda fidelity: fidelity.top8_recall),
    "mass recall": (1, lambda fidelity: fidelity.mass_recall),
}

Named = tuple[str, str]  # a variant, and its parameters as text


@dataclass(frozen=True, slots=True)
class Predicted:
    """By metric its correlation with the drop-in cosine, over ``variants`` approximations on one source."""

    source: str
    place: Place
    variants: int
    correlations: Mapping[str, float | None]
    otherwise: Sequence[str]  # those that had other parameters in the model


def predicted(families: Sequence[Family], trials: Sequence[TrialRecord]) -> list[Predicted]:
    """A row for every source, at the length nearest to that of the drop-ins; of few variants without correlations."""
    dropped = [group for group in comparison.groups(trials) if group[0].case.kind == DROP_IN]
    if not dropped:
        return []
    group = max(dropped, key=lambda group: len(_cosines(group)))
    cosines, length = _cosines(group), group[0].case.workload.query_length
    found = []
    for family in families:
        for source in family.sources:
            places = [place for place in family.places if place.mode == "fwd" and family.at(source, place)]
            if places:
                place = min(places, key=lambda place: (place.mask != "full", abs(math.log(place.length / length))))
                found.append(_predicted(family, source, place, cosines))
    return found


def _cosines(group: Sequence[TrialRecord]) -> dict[Named, float]:
    """Of each approximation, the mean over seeds."""
    found: dict[Named, list[float]] = {}
    for record in group:
        if isinstance(record.outcome, Replaced) and not record.about.exact:
            parameters = json.dumps(record.case.parameters, sort_keys=True, ensure_ascii=False)
            found.setdefault((record.case.variant, parameters), []).append(record.outcome.cosine)
    return {name: statistics.mean(values) for name, values in found.items()}


def _predicted(family: Family, source: str, place: Place, cosines: Mapping[Named, float]) -> Predicted:
    known = {(one.variant, one.parameters): cells for one, cells in family.at(source, place).items()}
    pairs, otherwise = matched(list(known), list(cosines))
    correlations = {
        name: _correlation(
            [(sources.metric(known[ours], of), cosines[theirs]) for ours, theirs in pairs],
            sign,
        )
        for name, (sign, of) in _METRICS.items()
    }
    return Predicted(source, place, len(pairs), correlations, otherwise)


def matched(ours: Sequence[Named], theirs: Sequence[Named]) -> tuple[list[tuple[Named, Named]], list[str]]:
    """The same variant on both sides: with the same parameters, or else where each side has but one set of them.

    Beside the pairs the names of those that have other parameters.
    """
    pairs = [(name, name) for name in ours if name in theirs]
    otherwise = []
    for variant in dict.fromkeys(variant for variant, _ in ours):
        here, there = ([name for name in names if name[0] == variant] for names in (ours, theirs))
        if len(here) == len(there) == 1 and here != there:
            pairs.append((here[0], there[0]))
            otherwise.append(variant)
    return pairs, otherwise


def _correlation(pairs: Sequence[tuple[float | None, float]], sign: int) -> float | None:
    """None below five, or where one side is the same for all."""
    from scipy.stats import spearmanr  # takes half a second, and only such runs need it

    known = [(value, cosine) for value, cosine in pairs if value is not None]
    if len(known) < FEWEST or any(len(set(side)) == 1 for side in zip(*known, strict=True)):
        return None
    return sign * float(spearmanr(*zip(*known, strict=True)).statistic)


def section(found: Sequence[Predicted]) -> str:
    """A row a source, or a sentence where there are too few variants; empty without drop-ins beside bare attentions."""
    enough = [one for one in found if one.variants >= FEWEST]
    if not enough:
        most = max((one.variants for one in found), default=0)
        return (
            f"Not told: {wording.counted(most, 'approximation')} {'was' if most == 1 else 'were'} measured both ways, "
            f"and a rank correlation of fewer than {FEWEST} says nothing."
            if found
            else ""
        )
    rows = [
        [
            markdown.code(one.source),
            markdown.text(str(one.place)),
            str(one.variants),
            *(_NOTHING if value is None else f"{value:.2f}" for value in one.correlations.values()),
        ]
        for one in enough
    ]
    table = markdown.table(["inputs", "where", "variants", *_METRICS], rows, left=2)
    otherwise = list(dict.fromkeys(name for one in enough for name in one.otherwise))
    note = (
        "Spearman's rank correlation with the cosine of the drop-in, signs turned so that 1 means: the better the "
        "figure, the better the drop-in. Exact attention is left out."
    )
    if otherwise:
        names = wording.listed([markdown.code(name) for name in otherwise])
        note += f" In the model with other parameters than here: {names}."
    return f"{table}\n\n{note}"
