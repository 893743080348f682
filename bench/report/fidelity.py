"""Everything that a page says of fidelity beyond a single ground, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.cells import Cell, Ground
from bench.fidelity import comparison
from bench.fidelity.trial import TrialRecord
from bench.report import inside, markdown, prediction, published, seeds, sources
from bench.report.gallery import PictureFile
from bench.report.sources import Family

_MOST_PLACES, _MOST_TABLES = 6, 8
_MOST_PICTURED = 2  # groups of drop-ins


@dataclass(frozen=True, slots=True)
class Part:
    """Text between headings: what is above its pictures, they, and what is below."""

    title: str
    above: str
    pictures: Sequence[PictureFile] = ()
    below: str = ""


def parts(
    gathered: Mapping[Ground, Sequence[Cell]], families: Sequence[Family], trials: Sequence[TrialRecord]
) -> list[Part]:
    """Of inputs that are no normal numbers, and of trials; empty where there are neither."""
    if not families and not trials:
        return []
    found = [*_by_source(families), *_inside(trials), *_over_seeds(families, trials), *_prediction(families, trials)]
    if trials or any(sources.is_real(source) for family in families for source in family.sources):
        told = published.section(published.ours(gathered, families, trials))
        found.append(Part("Published results", markdown.details("Long Range Arena, beside what was found here", told)))
    return found


def _by_source(families: Sequence[Family]) -> Iterator[Part]:
    for number, family in enumerate(families, start=1):
        prefix = "" if number == 1 else f"{number}-"
        first, *others = family.places
        tables = [
            (f"Everything on {source}: {place}", sources.metrics(family, source, place))
            for place in (first, *others)
            for source in family.sources
            if family.at(source, place)
        ]
        more = [(f"By input source: {place}", sources.errors(family, place)) for place in others[: _MOST_PLACES - 1]]
        counted = "" if len(families) == 1 else f" ({number} of {len(families)})"
        yield Part(
            f"Fidelity by input source{counted}",
            f"**{markdown.text(str(first))}**\n\n{sources.errors(family, first)}",
            sources.fronts(family, prefix),
            _folded([*more, *tables[:_MOST_TABLES]]),
        )


def _inside(trials: Sequence[TrialRecord]) -> Iterator[Part]:
    groups = comparison.groups(trials)
    if not groups:
        return
    yield Part("Inside a model", "\n\n".join([*map(inside.results, groups), inside.failures(trials)]).rstrip())
    pictured = [group for group in groups if inside.seen(group)]
    for number, group in enumerate(pictured[:_MOST_PICTURED], start=1):
        prefix = "" if number == 1 else f"{number}-"
        length = group[0].case.workload.query_length
        title = "Weights inside the encoder" + ("" if len(pictured) == 1 else f", {length} tokens ({number})")
        yield Part(title, inside.weights(group), list(inside.pictures(group, prefix)), _ABOUT_ROLLOUT)


_ABOUT_ROLLOUT = (
    "The rollout says how much of each token reaches each through all layers, where half of a layer is its residual "
    "(Abnar and Zuidema 2020, arXiv 2005.00928). Entropy and distance are means over rows, heads and layers."
)


def _over_seeds(families: Sequence[Family], trials: Sequence[TrialRecord]) -> Iterator[Part]:
    told = seeds.section(seeds.rankings(families, trials))
    if told:
        yield Part("Do the ranks hold over seeds?", told, (), seeds.NOTE)


def _prediction(families: Sequence[Family], trials: Sequence[TrialRecord]) -> Iterator[Part]:
    told = prediction.section(prediction.predicted(families, trials))
    if told:
        yield Part("Which figure predicts the drop-in?", told)


def _folded(tables: Iterable[tuple[str, str]]) -> str:
    return "\n\n".join(markdown.details(summary, table) for summary, table in tables)
