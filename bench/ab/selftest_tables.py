"""The figures of a self-test as tables, for the terminal and for Markdown."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench import wording
from bench.ab.recording import ONE_LENGTH, ONLY_BACKWARD, SHARES
from bench.ab.selftest import BANDS, PRECISE, Alike, Power, Rate, SelfTest
from bench.gate import naming
from bench.report import markdown

_GOALS = {"3%": 0.60, "5%": 0.90, "10%": 0.99}
_BINS = (0.0, 0.0025, PRECISE, 0.01, 0.02, math.inf)
_SPECIALS = {ONLY_BACKWARD: "10% only in bwd", ONE_LENGTH: "10% only at length 512"}


@dataclass(frozen=True, slots=True)
class Table:
    """Words in rows under columns."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def tables(test: SelfTest) -> list[Table]:
    """All of them; those for which nothing was recorded have no rows."""
    powers = test.power()
    return [_alike(test), _power(powers), _specials(test), _contests(test, powers), _cells(test, powers)]


def as_markdown(found: Iterable[Table]) -> str:
    """One after the other, each under its title."""
    parts = []
    for table in found:
        rows = [[markdown.text(word) for word in row] for row in table.rows]
        parts += [f"### {table.title}", markdown.table(table.columns, rows, left=1)]
    return "\n\n".join(parts) + "\n"


def _alike(test: SelfTest) -> Table:
    drawn, real = test.alike(), test.real()
    seconds = test.recording.round_seconds("alike")
    rounds = len(test.recording.rounds("alike"))
    cells = len(test.recording.keys("alike"))

    def row(what: str, told: Alike) -> tuple[str, ...]:
        return (
            what,
            f"{told.suites.hits} of {told.suites.trials}",
            _share(told.suites.upper) if told.suites.trials else "",
            *map(_rate, (told.cells, told.faster, told.inconclusive, told.noisy)),
            "" if math.isnan(told.suites.value) else wording.number(told.suspects, 2),
        )

    minutes = "" if seconds is None else f"; a pair takes {seconds:.0f} s, {test.screening} take "
    minutes += "" if seconds is None else f"{seconds * test.screening / 60:.1f} min"
    return Table(
        f"Identical code: {cells} cells, {test.screening} pairs for screening and {test.confirming} fresh ones for "
        f"suspects, from {rounds} rounds{minutes}",
        ("suites", "false alarms", "95% bound", "cells", "faster", "inconclusive", "too noisy", "suspects a suite"),
        [row("drawn", drawn), row("sharing no process", real)],
    )


def _power(powers: Sequence[Power]) -> Table:
    rows = []
    for low, high in itertools.pairwise(_BINS):
        within = [one for one in powers if low < one.error <= high]
        if not within:
            continue
        name = f"{_share(low)} to {_share(high)}" if high < math.inf else f"above {_share(low)}"
        rows.append((name, *_by_band(within)))
    precise = [one for one in powers if one.error <= PRECISE]
    if precise:
        rows.append((f"all to {_share(PRECISE)}", *_by_band(precise)))
    bands = (
        f"really {100 * low:g} to {100 * high:g}% slower, goal {_GOALS[name]:.0%}"
        for name, (low, high) in BANDS.items()
    )
    return Table(
        "Power: one slower cell in a suite of identical ones fails the job, by the standard error of its mean",
        ("standard error", *bands),
        rows,
    )


def _by_band(powers: Sequence[Power]) -> tuple[str, ...]:
    words = []
    for band in BANDS:
        own = [one for one in powers if one.band == band]
        cells = wording.counted(len({one.key for one in own}), "cell")
        words.append(f"{_rate(_summed(one.found for one in own))} ({cells})" if own else "")
    return tuple(words)


def _specials(test: SelfTest) -> Table:
    rows = [
        (_SPECIALS[side], _rate(told.found), _rate(told.cells), _rate(told.elsewhere))
        for side, told in test.specials().items()
    ]
    heavier = test.heavier()
    if heavier.trials:
        rows.append(("5% of the output more memory, no more time", "", _rate(heavier), ""))
    return Table(
        "Slow-downs in some cells alone", ("slow-down", "suites that fail", "cells found", "others blamed"), rows
    )


def _contests(test: SelfTest, powers: Sequence[Power]) -> Table:
    alike = test.alike()
    found = [_rate(_summed(one.found for one in powers if one.band == band)) for band in BANDS]
    processes = f"{test.screening} + {test.confirming}"
    rows = [("this gate", processes, _rate(alike.cells), _rate(alike.suites), *found)]
    for told in test.contests():
        rates = [_rate(told.found[band]) if band in told.found else "" for band in BANDS]
        rows.append((told.rival.name, str(told.rival.processes), _rate(told.cells), _rate(told.suites), *rates))
    return Table(
        "Rules of other tools, on the same samples",
        (
            "rule",
            "processes a side",
            "false alarms by cell",
            "by suite",
            *(f"finds {band}" for band in BANDS),
        ),
        rows,
    )


def _cells(test: SelfTest, powers: Sequence[Power]) -> Table:
    rows = []
    for one in sorted(powers, key=lambda one: (one.side, one.error)):
        case = test.recording.cases[one.key].case
        low, high = one.effect.low or 0.0, one.effect.high or 0.0
        effect = f"{_share(one.effect.value)} [{_share(low)}, {_share(high)}]"
        rows.append((naming.named(case), f"{SHARES[one.side]:.0%}", effect, _share(one.error), _rate(one.found)))
    return Table("Every slowed cell", ("case", "extra work", "real effect", "standard error", "found"), rows)


def _summed(rates: Iterable[Rate]) -> Rate:
    every = list(rates)
    return Rate(sum(rate.hits for rate in every), sum(rate.trials for rate in every))


def _rate(rate: Rate) -> str:
    return _share(rate.value) if rate.trials else ""


def _share(value: float) -> str:
    return wording.percent(value)
