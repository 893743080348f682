"""Two revisions in one job: screen everything with few pairs, measure suspects again with fresh ones, decide on those.

Every visit is on disk, in the file of its side, before the next one begins; ``process`` is the number of the pair. So
nothing is lost if the job is killed, and the files can be judged again.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench import store, wording
from bench.ab import evidence
from bench.ab.planning import Cost, Planner
from bench.ab.rounds import Rounds, Visit
from bench.ab.scope import Scope
from bench.gate import decision
from bench.gate.pairs import PairedCell
from bench.record import Measured, Record
from bench.sweep.plan import Cell


@dataclass(slots=True)
class Job:
    """``scopes``: base and head. ``calibration``: the noise of identical code by the key of a case, where it is known.

    ``say`` is told what happens, a line each.
    """

    scopes: tuple[Scope, Scope]
    planner: Planner
    folder: Path
    calibration: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    say: Callable[[str], None] = lambda _: None
    now: Callable[[], float] = time.monotonic
    # of the seconds already spent when the job begins, on work trees and environments
    started: float | None = None
    rounds: Rounds = field(init=False)
    _records: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list), init=False)
    _files: dict[str, store.Appender] = field(default_factory=dict, init=False)

    def run(self) -> list[PairedCell]:
        """What the gate is to judge.

        Raises:
            WrongUsageError: the files are there already, or the budget is too small.

        """
        begun = self.now() if self.started is None else self.started
        draw = random.Random(self.scopes[0].session.run_id)  # noqa: S311  # no secret
        self.rounds = Rounds(self.scopes, draw, memory_bytes=self.memory_bytes)
        every = list(dict.fromkeys(key for scope in self.scopes for key in scope.cases))
        self.planner.check(len(every))
        with ExitStack() as stack:
            for scope in self.scopes:
                file = self.folder / f"{scope.side.name}.jsonl"
                self._files[scope.side.name] = stack.enter_context(store.Appender(file, told=self.say))
                self._put_foregone(scope)
            cost = self._first_pair(every)
            screening = self.planner.screening(cost, self.now() - begun)
            self._pairs(range(1, screening), every, evidence.SCREENING)
            suspects = [cell.case.key() for cell in decision.suspects(self.cells(), self.planner.policy)]
            fresh = self.planner.confirming(cost, suspects, self.now() - begun)
            if suspects:
                self.say(f"{wording.counted(len(suspects), 'suspect')}: measured again with {fresh} fresh pairs")
            self._pairs(range(screening, screening + fresh), suspects, evidence.CONFIRMING)
        return self.cells()

    def cells(self) -> list[PairedCell]:
        """What has been measured so far, as the gate wants it."""
        base, head = (self._records[scope.side.name] for scope in self.scopes)
        return evidence.paired(base, head, self.calibration)

    def _put_foregone(self, scope: Scope) -> None:
        for key, outcome in scope.foregone.items():
            self._put(scope, scope.session.record(Cell(scope.cases[key], 0), outcome))

    def _first_pair(self, every: Sequence[str]) -> Cost:
        """Measure everything once, checks included; what a pair that only times costs."""
        self.say(f"pair 1: {wording.counted(len(every), 'case')}, checked, weighed and timed")
        started = self.now()
        seconds: dict[str, float] = defaultdict(float)
        for visit in self._visits(0, every, evidence.SCREENING):
            seconds[visit.case.key()] += visit.timing_seconds
        cost = Cost(self.rounds.starting_seconds, seconds)
        whole, timing = self.now() - started, cost.pair_seconds()
        self.say(f"pair 1 took {whole:.0f} s; one that only times is expected to take {timing:.0f} s")
        return cost

    def _pairs(self, numbers: range, keys: Collection[str], stage: str) -> None:
        for number in numbers:
            going = self._going(keys)
            if not going:
                return
            self.say(f"pair {number + 1} of {numbers.stop}, {stage}: {wording.counted(len(going), 'case')}")
            for _ in self._visits(number, going, stage):
                pass

    def _going(self, keys: Collection[str]) -> list[str]:
        """Those that no side has failed to measure so far: what became of the others is known."""
        ended = {
            record.case.key() for records in self._records.values() for record in records if record.status != "measured"
        }
        return [key for key in keys if key not in ended and all(key in scope.cases for scope in self.scopes)]

    def _visits(self, number: int, keys: Collection[str], stage: str) -> Iterator[Visit]:
        for visit in self.rounds.visits(keys):
            outcome = visit.outcome
            if isinstance(outcome, Measured):
                outcome = msgspec.structs.replace(outcome, conditions={**outcome.conditions, evidence.STAGE: stage})
            self._put(visit.scope, visit.scope.session.record(Cell(visit.case, number), outcome))
            yield visit

    def _put(self, scope: Scope, record: Record) -> None:
        self._files[scope.side.name].append(record)
        self._records[scope.side.name].append(record)
