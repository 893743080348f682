"""What the gate does with recorded rounds: false alarms on identical code, and which real slow-downs it finds.

A *suite* is a job as ``ab`` would have run it: some rounds for screening, and others, drawn without replacement from
the rest, for the suspects. No process is in a suite twice. Suites share processes, since they are drawn from one
recording; *real* suites do not, and are few. In every other suite base and head are exchanged, lest a side that is
always favoured goes unnoticed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scipy import special

from bench.ab import evidence, recording
from bench.ab.recording import ALIKE, BASE, HEAVIER, ONE_LENGTH, ONLY_BACKWARD, SHARES, Recording
from bench.ab.rivals import RIVALS, Rival, Samples
from bench.errors import NotComparableError
from bench.gate import decision, exact
from bench.gate.decision import Decision
from bench.gate.inference import trimmed_mean
from bench.gate.pairs import PairedCell, Side
from bench.gate.policy import Policy
from bench.record import Record
from bench.stats import Estimate

PRECISE = 0.005
# What a slow-down really costs, by what it is called.
BANDS = {"3%": (0.025, 0.035), "5%": (0.04, 0.06), "10%": (0.08, 0.125)}
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something happened."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        return self.hits / self.trials if self.trials else math.nan

    @property
    def upper(self) -> float:
        """The one-sided 95% bound of Clopper and Pearson, for trials that do not share processes."""
        if self.hits >= self.trials:
            return 1.0
        return float(special.betaincinv(self.hits + 1, self.trials - self.hits, _CONFIDENCE))


@dataclass(frozen=True, slots=True)
class Alike:
    """What suites of identical code came to. Cells are counted over all suites."""

    suites: Rate
    cells: Rate
    faster: Rate
    inconclusive: Rate
    noisy: Rate
    suspects: float


@dataclass(frozen=True, slots=True)
class Power:
    """How often one slower cell among identical ones fails the job. ``effect``: what the extra work really costs.

    ``error``: the standard error of the mean of the fresh pairs, from all rounds of identical code.
    """

    side: str
    key: str
    error: float
    effect: Estimate
    found: Rate

    @property
    def band(self) -> str | None:
        """That of :data:`BANDS` in which the real effect lies."""
        return band_of(self.effect)


def band_of(effect: Estimate) -> str | None:
    """That of :data:`BANDS` in which an effect lies; None where it lies in none."""
    return next((name for name, (low, high) in BANDS.items() if low <= effect.value <= high), None)


@dataclass(frozen=True, slots=True)
class Special:
    """Slow-downs of some cells alone: suites where any of them failed, cells that did, suites where others did."""

    found: Rate
    cells: Rate
    elsewhere: Rate


@dataclass(frozen=True, slots=True)
class Contest:
    """Another tool's rule on the same samples: false alarms by cell and suite, and slow-downs found by their band."""

    rival: Rival
    cells: Rate
    suites: Rate
    found: Mapping[str, Rate]


@dataclass(frozen=True)
class SelfTest:
    """A recording, and how suites are drawn from it."""

    recording: Recording
    policy: Policy
    screening: int
    confirming: int
    suites: int = 300
    seed: int = 0

    def check(self) -> None:
        """Whether there are rounds enough for a suite.

        Raises:
            NotComparableError: there are not.
            WrongUsageError: so many pairs cannot show anything.

        """
        needed = self.screening + self.confirming
        rounds = len(self.recording.rounds("alike"))
        if rounds < needed:
            raise NotComparableError(
                f"expected {needed} complete rounds of identical code for one suite, got {rounds}: record longer, or "
                "lower --screening and --confirming"
            )
        decision.check_pairs(self.confirming, len(self.recording.keys("alike")), self.policy)

    # --- drawing ------------------------------------------------------------------------------------------------

    def _draws(self, group: str, what: str) -> Iterator[tuple[list[int], list[int], bool]]:
        """Rounds for screening and for suspects, and whether the sides are exchanged, suite by suite."""
        rounds = self.recording.rounds(group)
        for number in range(self.suites):
            draw = random.Random(f"{self.seed} {what} {number}")  # noqa: S311  # no secret
            drawn = draw.sample(rounds, self.screening + self.confirming)
            yield drawn[: self.screening], drawn[self.screening :], bool(number % 2)

    def _disjoint(self) -> Iterator[tuple[list[int], list[int], bool]]:
        """The same for suites in the order of the recording that share no process."""
        rounds, size = self.recording.rounds("alike"), self.screening + self.confirming
        for start in range(0, len(rounds) - size + 1, size):
            drawn = rounds[start : start + size]
            yield drawn[: self.screening], drawn[self.screening :], False

    def _cell(
        self, group: str, side: str, key: str, screening: Sequence[int], *, exchanged: bool = False
    ) -> PairedCell:
        """A cell that was screened."""
        known = self.recording.cases[key]
        first = self.recording.ratios(group, side, screening, key)
        base = {number: self.recording.medians[group, BASE, number][key] for number in screening}
        measured = Side(status="measured")
        return PairedCell(
            case=known.case,
            about=known.about,
            base=measured,
            head=measured,
            screened=tuple(-ratio for ratio in first) if exchanged else first,
            noise=evidence.own_noise(base, first),
        )

    def _confirmed(
        self, cell: PairedCell, group: str, side: str, confirming: Sequence[int], *, exchanged: bool = False
    ) -> PairedCell:
        fresh = self.recording.ratios(group, side, confirming, cell.case.key())
        return replace(cell, confirmed=tuple(-ratio for ratio in fresh) if exchanged else fresh)

    def _suite(self, draw: tuple[list[int], list[int], bool]) -> list[PairedCell]:
        """A job on identical code, suspects measured again."""
        screening, confirming, exchanged = draw
        cells = [
            self._cell("alike", ALIKE, key, screening, exchanged=exchanged) for key in self.recording.keys("alike")
        ]
        suspects = {cell.case.key() for cell in decision.suspects(cells, self.policy)}
        return [
            self._confirmed(cell, "alike", ALIKE, confirming, exchanged=exchanged)
            if cell.case.key() in suspects
            else cell
            for cell in cells
        ]

    @cached_property
    def _alike_suites(self) -> list[list[PairedCell]]:
        return [self._suite(draw) for draw in self._draws("alike", "alike")]

    # --- figures ------------------------------------------------------------------------------------------------

    def alike(self) -> Alike:
        """Of suites that may share processes."""
        return self._summed(self._alike_suites)

    def real(self) -> Alike:
        """Of suites that do not."""
        return self._summed([self._suite(draw) for draw in self._disjoint()])

    def _summed(self, suites: Sequence[Sequence[PairedCell]]) -> Alike:
        judged = [decision.decide(cells, self.policy) for cells in suites]
        every = [one for decisions in judged for one in decisions]
        suspects = sum(bool(cell.confirmed) for cells in suites for cell in cells)

        def share(count: int) -> Rate:
            return Rate(count, len(every))

        return Alike(
            suites=Rate(sum(any(map(_fails, decisions)) for decisions in judged), len(judged)),
            cells=share(sum(map(_fails, every))),
            faster=share(sum(one.verdict == "faster" for one in every)),
            inconclusive=share(sum(one.verdict == "unclear" for one in every)),
            noisy=share(sum(one.noisy for one in every)),
            suspects=suspects / len(suites) if suites else math.nan,
        )

    @cached_property
    def effects(self) -> dict[tuple[str, str], Estimate]:
        """What the extra work of each side really costs in each case, from all rounds."""
        rounds = self.recording.rounds("burdened")
        found = {}
        for side, key in itertools.product(SHARES, self.recording.keys("burdened")):
            mean = trimmed_mean(self.recording.ratios("burdened", side, rounds, key))
            if mean is not None:
                low, high = mean.interval(_CONFIDENCE)
                found[side, key] = Estimate(math.expm1(mean.value), math.expm1(low), math.expm1(high))
        return found

    def power(self) -> list[Power]:
        """Of every slow-down of every case that bears it: one slower cell in a suite of identical ones."""
        if len(self.recording.rounds("burdened")) < self.screening + self.confirming:
            return []
        noise = recording.noise(self.recording)
        hits = dict.fromkeys(self.effects, 0)
        for side in SHARES:
            draws = self._draws("burdened", side)
            for cells, (screening, confirming, _) in zip(self._alike_suites, draws, strict=True):
                for key in self.recording.keys("burdened"):
                    others = [cell for cell in cells if cell.confirmed and cell.case.key() != key]
                    hits[side, key] += _fails(self._decided(side, key, screening, confirming, others))
        return [
            Power(
                side,
                key,
                noise.get(key, math.inf) / math.sqrt(self.confirming),
                effect,
                Rate(hits[side, key], self.suites),
            )
            for (side, key), effect in self.effects.items()
        ]

    def _decided(
        self, side: str, key: str, screening: Sequence[int], confirming: Sequence[int], others: Sequence[PairedCell]
    ) -> Decision:
        cell = self._cell("burdened", side, key, screening)
        if decision.suspects([cell], self.policy):
            cell = self._confirmed(cell, "burdened", side, confirming)
        return decision.decide([cell, *others], self.policy)[0]

    def specials(self) -> dict[str, Special]:
        """Slow-downs only in the backward, and only at one length, in suites of the cells that bear them."""
        if len(self.recording.rounds("burdened")) < self.screening + self.confirming:
            return {}
        return {side: self._special(side) for side in (ONLY_BACKWARD, ONE_LENGTH)}

    def _special(self, side: str) -> Special:
        affected, others = [], []
        for screening, confirming, _ in self._draws("burdened", side):
            cells = [self._cell("burdened", side, key, screening) for key in self.recording.keys("burdened")]
            suspects = {cell.case.key() for cell in decision.suspects(cells, self.policy)}
            decided = decision.decide(
                [
                    self._confirmed(cell, "burdened", side, confirming) if cell.case.key() in suspects else cell
                    for cell in cells
                ],
                self.policy,
            )
            weighed = recording.BURDENS[side].weighs_on
            affected.append([_fails(one) for one in decided if weighed(one.case.workload)])
            others.append([_fails(one) for one in decided if not weighed(one.case.workload)])
        return Special(
            found=Rate(sum(map(any, affected)), len(affected)),
            cells=Rate(sum(map(sum, affected)), sum(map(len, affected))),
            elsewhere=Rate(sum(map(any, others)), len(others)),
        )

    def heavier(self) -> Rate:
        """Of the cells whose peak rose by some bytes, those that the exact gate finds."""
        weighed: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in self.recording.records:
            if recording.group_of(record) == HEAVIER:
                weighed[recording.side_of(record), record.case.key()].append(record)
        cells = [
            PairedCell(
                case=known.case,
                about=known.about,
                base=Side.of(weighed[BASE, key]),
                head=Side.of(weighed[HEAVIER, key]),
            )
            for key, known in self.recording.cases.items()
            if (HEAVIER, key) in weighed
        ]
        findings = exact.find(cells, self.policy)
        return Rate(sum(one.gate == "memory" and one.fails == "regression" for one in findings), len(cells))

    # --- others -------------------------------------------------------------------------------------------------

    def contests(self) -> list[Contest]:
        """The rules of other tools on the same rounds, in as many suites."""
        return [self._contest(rival) for rival in RIVALS]

    def _contest(self, rival: Rival) -> Contest:
        keys = self.recording.keys("alike")
        alarms = [
            [self._judged(rival, "alike", ALIKE, key, chosen) for key in keys]
            for chosen in self._chosen(rival, "alike")
        ]
        found: dict[str, list[bool]] = defaultdict(list)
        for chosen in self._chosen(rival, "burdened"):
            for (side, key), effect in self.effects.items():
                if (band := band_of(effect)) is not None:
                    found[band].append(self._judged(rival, "burdened", side, key, chosen))
        return Contest(
            rival,
            cells=Rate(sum(map(sum, alarms)), sum(map(len, alarms))),
            suites=Rate(sum(map(any, alarms)), len(alarms)),
            found={band: Rate(sum(told), len(told)) for band, told in found.items()},
        )

    def _chosen(self, rival: Rival, group: str) -> Iterator[tuple[list[int], list[int]]]:
        """Rounds of base and of head, suite by suite: the same ones if interleaved, else no common one."""
        rounds = self.recording.rounds(group)
        count = rival.processes if rival.interleaved else 2 * rival.processes
        if len(rounds) < count:
            return
        for number in range(self.suites):
            draw = random.Random(f"{self.seed} {rival.name} {group} {number}")  # noqa: S311  # no secret
            drawn = draw.sample(rounds, count)
            yield (drawn, drawn) if rival.interleaved else (drawn[: rival.processes], drawn[rival.processes :])

    def _judged(self, rival: Rival, group: str, side: str, key: str, chosen: tuple[list[int], list[int]]) -> bool:
        def samples(name: str, rounds: Sequence[int]) -> Samples:
            return [self.recording.blocks[group, name, number][key] for number in rounds]

        return rival.is_slower(samples(BASE, chosen[0]), samples(side, chosen[1]))


def _fails(one: Decision) -> bool:
    return one.fails == "regression"
