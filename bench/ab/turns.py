"""One case on several sides that take turns, block by block.

What a machine does to a process drifts within hundredths of a second, so sides are compared over blocks of a few
milliseconds that lie side by side: every row holds one block of each side, in random order. How many rows there are
depends on the time that they take, never on what they say. A row that was disturbed on one side is dropped on all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bench.ab.seat import Seat
from bench.record import Case, Crashed, Measured, Outcome, OutOfMemory
from bench.sweep.messages import Block

FEWEST_ROWS = 5
ENOUGH_ROWS = 16  # of a long call, for which as many looks are taken as MOST_LOOKS
MOST_LOOKS = 3.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Takes turns for ``look_seconds`` a side; longer where that gives few rows of a long call, and five at least."""

    look_seconds: float
    draw: random.Random
    now: Callable[[], float] = time.monotonic

    def outcomes(self, places: Sequence[tuple[Seat, Case]]) -> list[Outcome]:
        """What became of the case in each place, with the seconds of the rows that all of them have.

        A process that died or ran out of memory gets a second chance.
        """
        found = self._once(places)
        if any(is_lost(outcome) for outcome in found):
            first, found = found, self._once(places)
            return [with_first_try(*both) for both in zip(first, found, strict=True)]
        return found

    def _once(self, places: Sequence[tuple[Seat, Case]]) -> list[Outcome]:
        ended: dict[int, Outcome] = {}
        for place in self._shuffled(range(len(places))):
            seat, case = places[place]
            reply = seat.open(case)
            if not isinstance(reply, Block):
                ended[place] = reply
        rows = self._rows([seat for seat, _ in places], ended)
        kept = undisturbed(rows)
        for place, (seat, _) in enumerate(places):
            if place not in ended:
                ended[place] = _with_seconds(seat.close(), [row[place].seconds for row in kept], len(rows))
        return [ended[place] for place in range(len(places))]

    def _rows(self, seats: Sequence[Seat], ended: dict[int, Outcome]) -> list[Mapping[int, Block]]:
        """A block of every side in each row; one that ends instead joins ``ended``."""
        rows: list[Mapping[int, Block]] = []
        begun = self.now()
        while len(seats) > len(ended) and self._goes_on(len(rows), len(seats) - len(ended), self.now() - begun):
            row: dict[int, Block] = {}
            for place in self._shuffled([place for place in range(len(seats)) if place not in ended]):
                reply = seats[place].turn()
                if isinstance(reply, Block):
                    row[place] = reply
                else:
                    ended[place] = reply
            rows.append(row)
        return rows

    def _goes_on(self, rows: int, sides: int, spent_seconds: float) -> bool:
        looks = MOST_LOOKS if rows < ENOUGH_ROWS else 1.0
        return rows < FEWEST_ROWS or spent_seconds < looks * self.look_seconds * sides

    def _shuffled(self, places: Sequence[int]) -> list[int]:
        return self.draw.sample(places, len(places))


def undisturbed(rows: Sequence[Mapping[int, Block]]) -> Sequence[Mapping[int, Block]]:
    """Rows without a blemish, unless most have one: then the disturbance belongs to the case, and all stay."""
    clean = [row for row in rows if all(block.blemish is None for block in row.values())]
    return clean if 2 * len(clean) >= len(rows) else rows


def _with_seconds(outcome: Outcome, seconds: list[float], taken: int) -> Outcome:
    if not isinstance(outcome, Measured):
        return outcome
    return msgspec.structs.replace(
        outcome, seconds=seconds, settled=False, dropped_share=1 - len(seconds) / taken if taken else 0.0
    )


def is_lost(outcome: Outcome) -> bool:
    """Whether the process died or ran out of memory, which may be the machine's fault."""
    return isinstance(outcome, Crashed | OutOfMemory) and outcome.stage != "predicted"


def with_first_try(first: Outcome, second: Outcome) -> Outcome:
    """The second outcome, with a note of the first if that was worse."""
    if isinstance(second, Measured) and isinstance(first, Crashed | OutOfMemory):
        note = f"a first try ended in stage {first.stage}: {first.message}"
        return msgspec.structs.replace(second, notes=[*second.notes, note])
    return second
