"""A round: one fresh process for each side, all alive at once, of which exactly one works at a time.

Cells come in random order, so that none is always after the same other one, and within a cell the sides take turns. All
processes of a round are kept on the same cores. What an attention does to its process costs the cell, and the rest
goes on in a fresh one.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from bench.ab import turns
from bench.ab.scope import Scope
from bench.ab.seat import Seat
from bench.record import Case, Measured, Outcome
from bench.sweep import pinning


@dataclass(frozen=True, slots=True)
class Visit:
    """What became of a case on one side in one round; ``timing_seconds``: what taking turns took, by side."""

    scope: Scope
    case: Case
    outcome: Outcome
    timing_seconds: float


@dataclass(slots=True)
class Rounds:
    """Rounds over the same sides. A case is checked at its first visit on a side, and only timed at further ones.

    ``starting_seconds``: what it took to start the processes of the last round.
    """

    scopes: Sequence[Scope]
    draw: random.Random
    memory_bytes: int | None = None
    checked: set[tuple[str, str]] = field(default_factory=set)
    starting_seconds: float = 0.0
    seat: Callable[..., Seat] = Seat
    now: Callable[[], float] = time.monotonic

    def visits(self, keys: Collection[str]) -> Iterator[Visit]:
        """One round. ``keys``: of the cases to visit, on each side that has them and can honour them.

        The next cell begins when its first visit is asked for: by then those before can be on disk.
        """
        able = [{case.key(): case for case in scope.able if case.key() in keys} for scope in self.scopes]
        order = list(dict.fromkeys(key for cases in able for key in cases))
        if not order:
            return
        self.draw.shuffle(order)
        cores, started = self._cores(), self.now()
        with contextlib.ExitStack() as stack:
            seats = [stack.enter_context(self.seat(scope, memory_bytes=self.memory_bytes)) for scope in self.scopes]
            for seat, cases in zip(seats, able, strict=True):
                seat.cores = cores
                if cases:
                    seat.settle(next(iter(cases.values())).variant)  # all have loaded before the first one works
            self.starting_seconds = self.now() - started
            for key in order:
                yield from self._cell(
                    [(seat, cases[key]) for seat, cases in zip(seats, able, strict=True) if key in cases]
                )

    def _cell(self, places: Sequence[tuple[Seat, Case]]) -> list[Visit]:
        """One case on all sides that have it; timed where a check had nothing against it."""
        found = {seat: self._checked(seat, case) for seat, case in self.draw.sample(places, len(places))}
        timed = [(seat, case) for seat, case in places if found[seat] is None or isinstance(found[seat], Measured)]
        started = self.now()
        clock = turns.Clock(_look_seconds(self.scopes[0]), self.draw, self.now)
        outcomes = dict(zip([seat for seat, _ in timed], clock.outcomes(timed), strict=True))
        taken = self.now() - started
        return [
            Visit(seat.scope, case, _joined(found[seat], outcomes.get(seat)), taken / len(places))
            for seat, case in places
        ]

    def _checked(self, seat: Seat, case: Case) -> Outcome | None:
        """What the check says of a case at its first visit on a side; None at further ones."""
        place = seat.scope.side.name, case.key()
        if place in self.checked:
            return None
        self.checked.add(place)
        first = seat.check(case)
        return turns.with_first_try(first, seat.check(case)) if turns.is_lost(first) else first

    def _cores(self) -> list[int] | None:
        on_gpu = self.scopes[0].device.startswith("cuda")
        return None if on_gpu else pinning.idlest(self.scopes[0].session.settings.threads)


def _look_seconds(scope: Scope) -> float:
    seconds = scope.session.settings.time_budget_seconds
    assert seconds is not None  # noqa: S101  # always explicit here
    return seconds


def _joined(checked: Outcome | None, timed: Outcome | None) -> Outcome:
    """The check's figures with the times of the turns."""
    if timed is None:
        assert checked is not None  # noqa: S101  # else it would have been timed
        return checked
    if not isinstance(checked, Measured) or not isinstance(timed, Measured):
        return timed
    return msgspec.structs.replace(
        checked,
        seconds=timed.seconds,
        timer=timed.timer,
        settled=timed.settled,
        dropped_share=timed.dropped_share,
        conditions={**checked.conditions, **timed.conditions},
        notes=[*checked.notes, *(note for note in timed.notes if note not in checked.notes)],
    )
