"""How far two whole runs of the same suite on the same machine agree.

``python -m tests.perf.repeats FIRST.jsonl SECOND.jsonl`` prints a table in Markdown. Each case is compared by the
median over its processes of their medians, as reports do.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from bench import cells, store

BOUNDS = (0.02, 0.05, 0.1)


def seconds(path: Path) -> dict[str, float]:
    """Of every measured case of a run."""
    ground = cells.gather(store.read(path).records)
    return {
        cell.records[0].case.key(): cell.seconds.value
        for found in ground.values()
        for cell in found
        if cell.seconds is not None
    }


def table(first: Mapping[str, float], second: Mapping[str, float]) -> str:
    """The ratio second / first over all cases that both have, and for those under and over a millisecond."""
    ratios = {key: second[key] / first[key] for key in first.keys() & second.keys()}
    short = {key for key in ratios if first[key] < 1e-3}  # a millisecond
    head = " | ".join(f"beyond {bound:.0%}" for bound in BOUNDS)
    rows = [f"| cases | count | median ratio | median difference | {head} | furthest |"]
    rows.append("|---|" + "---:|" * (4 + len(BOUNDS)))
    for title, keys in (("all", ratios.keys()), ("under 1 ms", short), ("over 1 ms", ratios.keys() - short)):
        rows.append(_row(title, [ratios[key] for key in sorted(keys)]))
    only = len(first.keys() ^ second.keys())
    return "\n".join([*rows, *([f"\nMeasured in one of them alone: {only}."] if only else [])])


def _row(title: str, ratios: Sequence[float]) -> str:
    if not ratios:
        return f"| {title} | 0 |" + " |" * (3 + len(BOUNDS))
    off = [abs(ratio - 1) for ratio in ratios]
    beyond = " | ".join(str(sum(each > bound for each in off)) for bound in BOUNDS)
    furthest = max(ratios, key=lambda ratio: abs(ratio - 1))
    middle = statistics.median(ratios)
    return f"| {title} | {len(ratios)} | {middle:.3f} | {statistics.median(off):.1%} | {beyond} | {furthest:.2f} |"


def main() -> None:
    """Read two runs and print how they compare."""
    if len(sys.argv) != 3:  # the program and two files
        raise SystemExit("expected two runs: python -m tests.perf.repeats FIRST.jsonl SECOND.jsonl")
    click.echo(table(*(seconds(Path(name)) for name in sys.argv[1:])))


if __name__ == "__main__":
    main()
