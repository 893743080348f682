"""Figures of pairs as tables in Markdown, and where in ``docs/variants.md`` they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bench import wording
from tests.perf.ratios import HEAD_DIM, HEADS, LENGTHS, PAIRS, Figures, Pair, Ratio, Side

PAGE = Path(__file__).parents[2] / "docs/variants.md"
HEADING = "\n## Measured ratios\n"
_INTRODUCTION = f"""\
How many times faster a variant is than another way to compute the same, and how many times less memory it takes at its
peak: batch 1, {HEADS} heads of {HEAD_DIM}, float32, one thread, same parameters, same inputs. The two take turns in one
process, block by block; in brackets is the 95% interval of the median ratio within that process. Bold is what is
promised, and – where a row only tells."""


def section(figures: Mapping[str, Figures]) -> str:
    """What was measured, where and how, and both tables."""
    machines = dict.fromkeys(f"{one.cpu}, {one.cores} cores, torch {one.torch_version}" for one in figures.values())
    return "\n\n".join(
        [
            _INTRODUCTION,
            f"Measured by `nox -s perf -- --write-ratios` on {'; '.join(machines)}.",
            "### Time",
            table(figures, "faster", lambda pair, mode: pair.faster[mode], _speedup),
            *_floors(figures),
            "### Memory",
            table(figures, "lighter", lambda pair, mode: pair.lighter.get(mode, 0), _saving),
            *_refused(figures),
        ]
    )


def table(
    figures: Mapping[str, Figures],
    title: str,
    promised: Callable[[Pair, str], float],
    shown: Callable[[Ratio], str],
) -> str:
    """A row for each pair and mode, a column for each length."""
    head = " | ".join(wording.length(length) for length in LENGTHS)
    lines = [
        f"| variant | instead of | mask | mode | {title} | {head} |",
        "|---|---|---|---|---:|" + "---:|" * len(LENGTHS),
    ]
    for name, found in figures.items():
        pair = PAIRS[name]
        for mode in pair.faster:
            by_length = {ratio.length: shown(ratio) for ratio in found.ratios if ratio.mode == mode}
            if not by_length:
                continue
            cells = (
                f"`{pair.ours.name}`{_spelled(pair.ours.parameters)}",
                f"{_named(pair.theirs)}{_spelled(pair.theirs.parameters)}",
                f"`{pair.mask}`",
                f"`{mode}`",
                f"**{promised(pair, mode):g}×**" if promised(pair, mode) else "–",
                *(by_length.get(length, "") for length in LENGTHS),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _speedup(ratio: Ratio) -> str:
    between = ratio.speedup
    interval = "" if between.low is None or between.high is None else f" ({between.low:.2f}–{between.high:.2f})"
    return f"{between.value:.2f}×{interval}"


def _saving(ratio: Ratio) -> str:
    return f"{ratio.saving:.3g}×"


def _named(side: Side) -> str:
    return f"`{side.name}`" if side.formula is None else side.name


def _spelled(parameters: Mapping[str, object]) -> str:
    return "".join(f" {name}={str(value).lower()}" for name, value in parameters.items())


def _floors(figures: Mapping[str, Figures]) -> Iterator[str]:
    for name in figures:
        pair = PAIRS[name]
        if pair.floor:
            at = ", ".join(map(wording.length, pair.less_at))
            less = f"{min(pair.less_at.values()):g}× at {at}"
            yield f"`{pair.ours.name}` instead of {_named(pair.theirs)} promises only {less}: {pair.floor}"


def _refused(figures: Mapping[str, Figures]) -> Iterator[str]:
    reasons = dict.fromkeys(
        f"- {PAIRS[name].ours.name} and {PAIRS[name].theirs.name}: {'; '.join(one.reasons)}"
        for name, found in figures.items()
        for one in found.refused
    )
    if reasons:
        yield "Not measured:\n\n" + "\n".join(reasons)


def written_into(page: str, text: str) -> str:
    """The page with its section about ratios replaced.

    Raises:
        ValueError: the page has no such section.

    """
    before, heading, _ = page.partition(HEADING)
    if not heading:
        raise ValueError(f"expected a page with the section {HEADING.strip()!r}")
    return f"{before}{heading}\n{text}\n"


def missed(pair: Pair, ratios: Sequence[Ratio], margin: float) -> list[str]:
    """What is promised of a pair and does not hold, by more than a margin as a share and beyond the interval."""
    return [*_too_slow(pair, ratios, margin), *_too_fat(pair, ratios)]


def _too_slow(pair: Pair, ratios: Iterable[Ratio], margin: float) -> Iterator[str]:
    for ratio in ratios:
        found, wanted = ratio.speedup, pair.promised(ratio.mode, ratio.length)
        best = found.value if found.high is None else found.high
        if best < wanted * (1 - margin):
            yield f"{pair.name} {ratio.mode} {ratio.length}: {_speedup(ratio)} as fast, promised are {wanted:g}×"


def _too_fat(pair: Pair, ratios: Sequence[Ratio]) -> Iterator[str]:
    for ratio in ratios:
        wanted = pair.lighter.get(ratio.mode, 0)
        if ratio.saving < wanted:
            yield f"{pair.name} {ratio.mode} {ratio.length}: {_saving(ratio)} less memory, promised are {wanted:g}×"
    for mode in pair.faster if pair.is_linear else ():
        own = sorted((ratio.length, ratio.ours_peak_bytes) for ratio in ratios if ratio.mode == mode)
        if own and own[-1][1] * own[0][0] > 1.1 * own[0][1] * own[-1][0]:
            yield f"{pair.name} {mode}: memory grows faster than the length, from {own[0]} to {own[-1]}"
