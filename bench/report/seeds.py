"""Do ranks hold over seeds? Kendall's τ between every pair of them, and whether uniform weights come last."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from bench import wording
from bench.fidelity import comparison
from bench.fidelity.trial import DROP_IN, NO_ATTENTION, Replaced, Trained, TrialRecord
from bench.report import markdown
from bench.report.sources import Family

HOLDS = 0.8
_FEWEST = 3  # variants, of which an order says anything
_FLOOR = "uniform"
_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Ranking:
    """By seed, how good each approximation is: the more the better. ``behind``: why some may be behind the floor."""

    name: str
    by_seed: Mapping[int, Mapping[str, float]]
    behind: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """The least τ of all pairs of seeds, between which two it is, and over how many variants."""

    tau: float
    seeds: tuple[int, int]
    variants: int


def rankings(families: Sequence[Family], trials: Sequence[TrialRecord]) -> list[Ranking]:
    """Of drop-ins, of tasks that exact attention solves on every seed, and of bare attentions by source."""
    return [*_of_trials(trials), *(ranking for family in families for ranking in _of_family(family))]


def _of_trials(trials: Sequence[TrialRecord]) -> Iterator[Ranking]:
    for group in comparison.groups(trials):
        case = group[0].case
        if case.kind == DROP_IN:
            name = f"cosine, dropped in, {case.workload.query_length} tokens"
            yield Ranking(name, _scores(group, _cosine), _UNTRAINED)
        elif comparison.refusal(group) is None:
            name = f"accuracy, {comparison.table(group).title.partition(', at most')[0]}"
            yield Ranking(name, _scores(group, _accuracy), _AT_CHANCE)


_UNTRAINED = "each is used as it is, in a model that was not trained with it"
_AT_CHANCE = "those that learned nothing are at chance, where the order is luck"
_LEAVING_OUT = (
    "on normal numbers all keys matter about as much, and leaving some out costs more than weighing all alike"
)


def _cosine(record: TrialRecord) -> float | None:
    return record.outcome.cosine if isinstance(record.outcome, Replaced) else None


def _accuracy(record: TrialRecord) -> float | None:
    return record.outcome.final_accuracy if isinstance(record.outcome, Trained) else None


def _scores(group: Iterable[TrialRecord], score: Callable[[TrialRecord], float | None]) -> dict[int, dict[str, float]]:
    """Of the approximations; what there is instead of attention is none."""
    found: dict[int, dict[str, float]] = {}
    for label, records in comparison.by_variant(list(group)).items():
        for record in records:
            value = score(record)
            if value is not None and not record.about.exact and record.case.variant != NO_ATTENTION:
                found.setdefault(record.case.workload.seed, {})[label] = value
    return found


def _of_family(family: Family) -> Iterator[Ranking]:
    for source in family.sources:
        for place in family.places:
            found: dict[int, dict[str, float]] = {}
            for contender, cells in family.at(source, place).items():
                for cell in cells:
                    if cell.relative_error is not None:
                        found.setdefault(cell.ground.seed, {})[contender.label] = -cell.relative_error
            if found:
                why = _UNTRAINED if source != "normal" else _LEAVING_OUT
                yield Ranking(f"error on {source}, {place}", found, why)


# --- judged -------------------------------------------------------------------------------------------------------


def agreement(ranking: Ranking) -> Agreement | None:
    """The worst pair of seeds; None with one seed, with fewer than three variants, or where all are alike."""
    from scipy.stats import kendalltau  # takes half a second, and only such runs need it

    found = []
    for (one, some), (other, others) in combinations(sorted(ranking.by_seed.items()), 2):
        shared = [label for label in some if label in others]
        if len(shared) < _FEWEST or any(len({scores[label] for label in shared}) == 1 for scores in (some, others)):
            continue
        tau = float(kendalltau([some[label] for label in shared], [others[label] for label in shared]).statistic)
        found.append(Agreement(tau, (one, other), len(shared)))
    return min((one for one in found if math.isfinite(one.tau)), key=lambda one: one.tau, default=None)


def behind_the_floor(ranking: Ranking) -> list[str] | None:
    """Who is worse than uniform weights on any seed; None where those were not tried."""
    if not any(_FLOOR in scores for scores in ranking.by_seed.values()):
        return None
    return list(
        dict.fromkeys(
            label
            for scores in ranking.by_seed.values()
            if _FLOOR in scores
            for label, score in scores.items()
            if score < scores[_FLOOR]
        )
    )


def section(found: Sequence[Ranking]) -> str:
    """A row a ranking, and a sentence for each kind of reason why uniform weights do not come last."""
    told = [ranking for ranking in found if max(map(len, ranking.by_seed.values()), default=0) >= _FEWEST]
    table = markdown.table(
        ["ranks by", "seeds", "approximations", "least τ", "between seeds", "verdict", f"`{_FLOOR}` is last"],
        [[markdown.text(ranking.name), *_row(ranking)] for ranking in told],
    )
    return "\n\n".join(part for part in (table, *_reasons(told)) if part)


def _row(ranking: Ranking) -> list[str]:
    behind, agreed = behind_the_floor(ranking), agreement(ranking)
    last = "not tried" if behind is None else "no" if behind else "yes"
    most = max(map(len, ranking.by_seed.values()))
    if agreed is None:
        verdict = "one seed: preliminary" if len(ranking.by_seed) == 1 else "too few to say"
        return [str(len(ranking.by_seed)), str(most), _NOTHING, _NOTHING, verdict, last]
    verdict = "holds" if agreed.tau >= HOLDS else "**does not hold**"
    between = f"{agreed.seeds[0]} and {agreed.seeds[1]}"
    return [str(len(ranking.by_seed)), str(agreed.variants), f"{agreed.tau:.2f}", between, verdict, last]


def _reasons(found: Sequence[Ranking]) -> Iterator[str]:
    by_reason: dict[str, dict[str, None]] = {}
    for ranking in found:
        behind = behind_the_floor(ranking)
        if behind:
            by_reason.setdefault(ranking.behind, {}).update(dict.fromkeys(behind))
    for reason, labels in by_reason.items():
        names = wording.listed([markdown.code(label) for label in labels])
        rankings_ = wording.listed(
            [markdown.text(one.name) for one in found if one.behind == reason and behind_the_floor(one)]
        )
        verb = "is" if len(labels) == 1 else "are"
        yield f"`{_FLOOR}` is not last by {rankings_}: {names} {verb} behind it on a seed at least; {reason}."


NOTE = (
    f"τ is Kendall's, of the ranks of the approximations between two seeds, the least of all pairs; ranks *hold* where "
    f"it is at least {HOLDS}. Exact attention is left out."
)
