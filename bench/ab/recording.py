"""What the self-test measures: rounds of identical code, and rounds with real slow-downs beside it.

A round is fresh processes, one for each of its sides, in which every cell is visited in random order; it is a number,
the ``process`` of its records. The rounds of a group have the same sides; which group a round is of, the condition
``stage`` of its records says. ``base`` takes part in every round, so that any other side makes a pair with it.
"""

from __future__ import annotations

import datetime as dt
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from bench import store
from bench.ab import evidence
from bench.ab.burden import ENGINE, Burden
from bench.ab.rounds import Rounds
from bench.ab.scope import Scope, explore
from bench.ab.seat import Seat
from bench.ab.sides import Side
from bench.errors import NotComparableError
from bench.gate.inference import noise_of
from bench.record import Case, Measured, Record
from bench.sweep import session
from bench.sweep.plan import Cell
from bench.sweep.suite import Suite

BASE, ALIKE = "base", "alike"
SHARES = {"slower_1": 0.01, "slower_3": 0.03, "slower_5": 0.05, "slower_10": 0.10}
ONLY_BACKWARD, ONE_LENGTH, HEAVIER = "only_backward", "one_length", "heavier"
BURDENS = {
    **{name: Burden(share=share) for name, share in SHARES.items()},
    ONLY_BACKWARD: Burden(share=0.10, modes=("bwd",)),
    ONE_LENGTH: Burden(share=0.10, lengths=(512,)),
    HEAVIER: Burden(ballast=0.05),
}

# A round of each group, again and again. Memory does not vary: one round tells, the first of a session.
GROUPS = {
    "alike": (BASE, ALIKE),
    "burdened": (BASE, *SHARES, ONLY_BACKWARD, ONE_LENGTH),
    "heavier": (BASE, HEAVIER),
}
CYCLE = ("alike", "alike", "burdened")

# Whose work is the sum over pairs, so that a slice of them is a slice of it; and so many pairs that a call of a few of
# them costs not much more than its share.
BURDENABLE = ("naive_sdpa", "sdpa_math", "sdpa_flash")
BURDENED_MODES = ("fwd", "bwd")
FEWEST_ROWS = 256


def bears_burden(case: Case) -> bool:
    """Whether a slice of the case can be computed twice."""
    workload = case.workload
    return (
        case.variant in BURDENABLE
        and workload.mode in BURDENED_MODES
        and workload.mask == "full"
        and workload.query_length >= FEWEST_ROWS
    )


# --- measuring ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Records rounds into a file until the time is up, or goes on with one."""

    suite: Suite
    file: Path
    seconds: float
    resume: bool = False
    arguments: Sequence[str] = ()
    say: Callable[[str], None] = lambda _: None
    now: Callable[[], float] = time.monotonic
    explore: Callable[..., list[Scope]] = explore
    seat: Callable[..., Seat] = Seat

    def record(self) -> None:
        """Rounds, one after the other; none begins that would not end in time.

        Raises:
            WrongUsageError: the file is there and is not to be resumed.
            NotComparableError: it is of another host, revision or settings.

        """
        begun = self.now()
        with store.Appender(self.file, resume=self.resume, told=self.say) as appender:
            earlier = appender.reading.records
            run_id = earlier[0].run_id.rpartition("-")[0] if earlier else session.new_run_id()
            (base,) = self.explore([Side(name=BASE)], self.suite, run_id=run_id, arguments=self.arguments)
            names = dict.fromkeys(name for names in GROUPS.values() for name in names)
            scopes = {name: _taken_up(_as(base, name, run_id), earlier) for name in names}
            first = 1 + max((record.process for record in earlier), default=-1)
            rounds = self._rounds(scopes, seed=f"{run_id} {first}")
            lasted: dict[str, float] = {}
            for turn, group in enumerate(_turns(), start=first):
                started = self.now()
                if started - begun + lasted.get(group, 0.0) > self.seconds:
                    return
                self.say(f"round {turn + 1}, {group}: {(started - begun) / 60:.1f} of {self.seconds / 60:.1f} minutes")
                self._round(turn, group, rounds[group], scopes, appender)
                lasted[group] = self.now() - started

    def _rounds(self, scopes: Mapping[str, Scope], seed: str) -> dict[str, Rounds]:
        draw, checked = random.Random(seed), set[tuple[str, str]]()  # noqa: S311  # no secret
        return {
            group: Rounds([scopes[name] for name in names], draw, checked=checked, seat=self.seat, now=self.now)
            for group, names in GROUPS.items()
        }

    def _round(
        self, number: int, group: str, rounds: Rounds, scopes: Mapping[str, Scope], appender: store.Appender
    ) -> None:
        keys = [key for key, case in scopes[BASE].cases.items() if group == "alike" or bears_burden(case)]
        for visit in rounds.visits(keys):
            outcome = visit.outcome
            if isinstance(outcome, Measured):
                outcome = msgspec.structs.replace(outcome, conditions={**outcome.conditions, evidence.STAGE: group})
            appender.append(visit.scope.session.record(Cell(visit.case, number), outcome))


def _turns() -> Iterator[str]:
    yield "heavier"
    while True:
        yield from CYCLE


def _as(base: Scope, name: str, run_id: str) -> Scope:
    """The scope of another side: the same code here, with the burden of that name if there is one."""
    side = replace(base.side, name=name)
    if name in BURDENS:
        side = replace(side, engine=ENGINE, home=replace(side.home, environment=BURDENS[name].environment()))
    return replace(base, side=side, session=msgspec.structs.replace(base.session, run_id=f"{run_id}-{name}"))


def _taken_up(scope: Scope, earlier: Sequence[Record]) -> Scope:
    own = [record for record in earlier if record.run_id == scope.session.run_id]
    return replace(scope, session=session.taken_up(scope.session, own))


# --- reading --------------------------------------------------------------------------------------------------

Place = tuple[str, str, int]


@dataclass(frozen=True)
class Recording:
    """The records of self-tests on one machine. A :data:`Place` is a group, a side and a round."""

    records: Sequence[Record]

    @cached_property
    def cases(self) -> dict[str, Record]:
        """One record of each case, by its key, in order of appearance."""
        found: dict[str, Record] = {}
        for record in self.records:
            found.setdefault(record.case.key(), record)
        return found

    @cached_property
    def blocks(self) -> dict[Place, dict[str, list[float]]]:
        """The seconds of every block, by the key of the case."""
        found: dict[Place, dict[str, list[float]]] = defaultdict(dict)
        for record in self.records:
            if isinstance(record.outcome, Measured) and record.outcome.seconds:
                found[group_of(record), side_of(record), record.process][record.case.key()] = record.outcome.seconds
        return found

    @cached_property
    def medians(self) -> dict[Place, dict[str, float]]:
        """The median of each process, by the key of the case."""
        return {
            place: {key: statistics.median(seconds) for key, seconds in cases.items()}
            for place, cases in self.blocks.items()
        }

    def rounds(self, group: str) -> list[int]:
        """The complete ones of a group: all its sides measured the same cases, as many as in any round."""
        return self._complete[group][0]

    def keys(self, group: str) -> list[str]:
        """The cases of a group's complete rounds, in order of appearance."""
        return self._complete[group][1]

    @cached_property
    def _complete(self) -> dict[str, tuple[list[int], list[str]]]:
        return {group: self._complete_of(group) for group in GROUPS}

    def _complete_of(self, group: str) -> tuple[list[int], list[str]]:
        numbers = sorted({number for known, _, number in self.blocks if known == group})
        met = {
            number: [set(self.blocks.get((group, name, number), ())) for name in GROUPS[group]] for number in numbers
        }
        most: set[str] = max((cases for sides in met.values() for cases in sides), key=len, default=set())
        complete = [number for number, sides in met.items() if all(cases == most for cases in sides)]
        return complete, [key for key in self.cases if key in most]

    def ratios(self, group: str, side: str, rounds: Sequence[int], key: str) -> tuple[float, ...]:
        """The log-ratio of the side over base in each of the rounds."""
        case = self.cases[key].case
        return tuple(
            evidence.pair_ratio(self.blocks[group, side, number][key], self.blocks[group, BASE, number][key], case)
            for number in rounds
        )

    def round_seconds(self, group: str) -> float | None:
        """What a round takes from its beginning to that of the next one, in the median; None if nobody knows."""
        begins: dict[int, dt.datetime] = {}
        groups: dict[int, str] = {}
        for record in self.records:
            if record.at is not None:
                at = dt.datetime.fromisoformat(record.at)
                begins[record.process] = min(at, begins.get(record.process, at))
                groups[record.process] = group_of(record)
        gaps = [
            (begins[number + 1] - begins[number]).total_seconds()
            for number, known in groups.items()
            if known == group and number + 1 in begins
        ]
        return statistics.median(gaps) if gaps else None


def group_of(record: Record) -> str:
    """The group of the record's round; none of what was not measured."""
    return str(record.outcome.conditions.get(evidence.STAGE, "")) if isinstance(record.outcome, Measured) else ""


def side_of(record: Record) -> str:
    """The side that the record's process was on."""
    return record.run_id.rpartition("-")[2]


def load(files: Sequence[Path]) -> Recording:
    """The recording of a file, or of several of one machine, whose rounds are counted on.

    Raises:
        WrongUsageError: a file cannot be read.
        NotComparableError: they are of several machines or settings, or hold no pairs of identical code.

    """
    records: list[Record] = []
    for file in files:
        first = 1 + max((record.process for record in records), default=-1)
        own = store.read(file).records
        records += [msgspec.structs.replace(record, process=record.process + first) for record in own]
    places = {(record.host.fingerprint, record.host.device_name, record.settings) for record in records}
    if len(places) > 1:
        raise NotComparableError(f"expected recordings of one machine with one setting, got {len(places)}")
    found = Recording(records)
    if not found.rounds("alike"):
        raise NotComparableError("expected a recording with rounds of identical code: make one with 'gate selftest'")
    return found


def noise(recording: Recording) -> dict[str, float]:
    """The standard deviation that a pair of identical code has, by the key of the case."""
    rounds = recording.rounds("alike")
    found = {key: noise_of(recording.ratios("alike", ALIKE, rounds, key)) for key in recording.keys("alike")}
    return {key: value for key, value in found.items() if value is not None}
