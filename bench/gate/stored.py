"""Two stored runs, compared: made at different times, so that more than the code may differ between them.

Processes of one run share what the machine was like that day. How much runs of identical code differ is known only
where base holds several runs; without, nothing below 5% counts. A run of a single process says nothing of its own
noise and is held against a fixed, coarse margin. The two files of an interleaved comparison are pairs, and decided
as such.
"""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bench import store, wording
from bench.ab import evidence
from bench.errors import WrongUsageError
from bench.gate import comparable
from bench.gate.decision import OWN_NOISE, Comparison, Timed, timings
from bench.gate.inference import Mean, difference, noise_of
from bench.gate.judgement import Judgement, judge_timed
from bench.gate.naming import named
from bench.gate.pairs import PairedCell, Side
from bench.gate.policy import DEFAULT, Policy
from bench.record import Case, Measured, Record
from bench.store import Reading

_FEWEST = 2

# By run and process, the median seconds of one case.
_Medians = Mapping[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class _Sides:
    """One case in both runs."""

    base: Sequence[Record]
    head: Sequence[Record]

    @property
    def case(self) -> Case:
        return (*self.base, *self.head)[0].case

    @property
    def is_measured(self) -> bool:
        return bool(self.base and self.head) and all(
            isinstance(one.outcome, Measured) for one in (*self.base, *self.head)
        )


def compare(
    base: Reading,
    head: Reading,
    policy: Policy = DEFAULT,
    *,
    allowed: Collection[str] = (),
    today: dt.date | None = None,
    names: tuple[str, str] = ("base", "head"),
) -> Judgement:
    """The judgement of two stored runs.

    Raises:
        NotComparableError: they are of different hosts, settings or versions, or something in them cannot be read.
        WrongUsageError: they are the two sides of one interleaved job, head first.

    """
    if _are_paired(head.records, base.records):
        raise WrongUsageError(
            f"expected base and then head of an 'ab' job, got its head {names[0]} first: give {names[1]} {names[0]}"
        )
    paired = _are_paired(base.records, head.records)
    if paired:  # each revision may have brought its own libraries, which is then what was compared
        allowed = {*allowed, comparable.VERSIONS}
    notes = [
        *_shared(base.records, head.records),
        *comparable.check_reading(base, names[0], allowed),
        *comparable.check_reading(head, names[1], allowed),
        *comparable.check(base.records, head.records, allowed),
    ]
    problems = [*_invalid(base.records, names[0]), *_invalid(head.records, names[1])]
    cells: list[tuple[Comparison, Timed]]
    if paired and not problems:
        cells = timings(evidence.paired(base.records, head.records), policy)
    else:
        cells = _stored(base.records, head.records, policy)
        for records, name in zip((base.records, head.records), names, strict=True):
            notes += comparable.check_complete(records, name, allowed)
        notes += _single(base.records, head.records, policy)
    return judge_timed(cells, policy, today=today, problems=problems, notes=notes, base=names[0], head=names[1])


def read_and_compare(
    base: str, head: str, policy: Policy = DEFAULT, *, allowed: Collection[str] = (), today: dt.date | None = None
) -> Judgement:
    """The judgement of two run files.

    Raises:
        WrongUsageError: a file that cannot be read.
        NotComparableError: see :func:`compare`; also an empty file.

    """
    return compare(store.read(base), store.read(head), policy, allowed=allowed, today=today, names=(base, head))


def _are_paired(base: Sequence[Record], head: Sequence[Record]) -> bool:
    """Whether these are the two sides of one interleaved job, whose records say what each pair was for."""
    return evidence.are_pairs(base, head) and any(
        evidence.STAGE in record.outcome.conditions for record in (*base, *head) if isinstance(record.outcome, Measured)
    )


def _invalid(records: Sequence[Record], name: str) -> list[str]:
    """Measured outcomes without a time that can be one: what failed and was written as 0 is no measurement."""
    return [
        f"{name}: {named(record.case)} counts as measured, without a time above 0"
        for record in records
        if isinstance(record.outcome, Measured) and not _median(record.outcome) > 0
    ]


def _median(outcome: Measured) -> float:
    """NaN where a sample is missing or not positive, since one such spoils the rest."""
    seconds = outcome.seconds
    valid = bool(seconds) and min(seconds) > 0 and math.isfinite(sum(seconds))
    return statistics.median(seconds) if valid else math.nan


def _stored(base: Sequence[Record], head: Sequence[Record], policy: Policy) -> list[tuple[Comparison, Timed]]:
    found: dict[str, _Sides] = {}
    sides: tuple[dict[str, list[Record]], ...] = (defaultdict(list), defaultdict(list))
    for side, records in zip(sides, (base, head), strict=True):
        for record in records:
            side[record.case.key()].append(record)
    found = {key: _Sides(sides[0].get(key, []), sides[1].get(key, [])) for key in dict.fromkeys([*sides[0], *sides[1]])}
    medians = {key: (_medians(each.base), _medians(each.head)) for key, each in found.items() if each.is_measured}
    noises = {key: _noise_between_runs(before) for key, (before, _) in medians.items()}
    usual = statistics.median(known) if (known := [noise for noise in noises.values() if noise is not None]) else None
    return [
        (
            PairedCell(
                case=each.case,
                about=(*each.base, *each.head)[0].about,
                base=Side.of(each.base),
                head=Side.of(each.head),
            ),
            _timed(each.case, *medians[key], policy, noise=noises[key], usual=usual)
            if key in medians
            else Timed(mean=None, units=0, margin=policy.margin_of(each.case)),
        )
        for key, each in found.items()
    ]


def _medians(records: Sequence[Record]) -> _Medians:
    return {
        (record.run_id, record.process): _median(record.outcome)
        for record in records
        if isinstance(record.outcome, Measured)
    }


def _noise_between_runs(medians: _Medians) -> float | None:
    """The standard deviation of the logarithm between runs, each with its median; None with fewer than two runs."""
    runs: dict[str, list[float]] = defaultdict(list)
    for (run_id, _), seconds in medians.items():
        runs[run_id].append(seconds)
    return noise_of([math.log(statistics.median(values)) for values in runs.values()])


def _timed(
    case: Case, base: _Medians, head: _Medians, policy: Policy, *, noise: float | None, usual: float | None
) -> Timed:
    """``noise``: of this case between runs; ``usual``: of all cases, since two or three runs say little of one."""
    before, after = [*base.values()], [*head.values()]
    units = min(len(before), len(after))
    wanted = policy.margin_of(case)
    if not all(seconds > 0 for seconds in (*before, *after)):
        return Timed(mean=None, units=units, margin=wanted, lacking="a time that is none")
    if base == head:  # a run against itself
        return Timed(mean=Mean(0.0, 0.0, units), units=units, margin=wanted)
    logs = [[math.log(seconds) for seconds in values] for values in (after, before)]
    centre = statistics.median(logs[0]) - statistics.median(logs[1])
    if units < _FEWEST:
        return Timed(mean=None, units=units, margin=policy.coarse_margin, coarse=centre)
    if noise is None or usual is None:
        own = policy.stored_margin
    else:
        runs = len({run_id for run_id, _ in base})
        own = math.expm1(OWN_NOISE * max(noise, usual) * math.sqrt(1 + 1 / runs))
    return Timed(
        mean=difference(*logs), units=units, margin=max(wanted, own), coarse=centre, noisy=own > policy.coarse_margin
    )


def _shared(base: Sequence[Record], head: Sequence[Record]) -> list[str]:
    """That a run was compared with itself, which says nothing of a change."""
    before, after = ({record.run_id for record in records} for records in (base, head))
    both = ", ".join(sorted(before & after))
    if not both:
        return []
    if before == after:
        return [f"base and head are the same run ({both}): there is no change of code between them"]
    return [f"base and head have a run in common ({both}): in so far it is compared with itself"]


def _single(base: Sequence[Record], head: Sequence[Record], policy: Policy) -> list[str]:
    """That no better can be said of runs of one process, or of one run a side."""
    margin = wording.percent(policy.coarse_margin)
    for records, name in ((base, "base"), (head, "head")):
        if len({(record.run_id, record.process) for record in records}) < _FEWEST:
            return [f"coarse: {name} has one process, so only changes beyond {margin} are seen; 'run --processes 10'"]
    if len({record.run_id for record in base}) < _FEWEST:
        margin = wording.percent(policy.stored_margin)
        return [f"base is one run: how much runs differ here is not known, and nothing below {margin} counts"]
    return []
