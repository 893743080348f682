"""The answer of a run: for a workload and a length, the fastest exact and the fastest approximate attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench import stats
from bench.cells import Cell, Contender

_AT_THE_FLOOR = 0.98


@dataclass(frozen=True, slots=True)
class Pick:
    """The fastest of its kind at one length, and ``rivals`` that the measurement cannot tell from it, fastest first."""

    cell: Cell
    rivals: Sequence[Cell] = ()

    @property
    def seconds(self) -> stats.Estimate:
        """The time; a pick always has one."""
        assert self.cell.seconds is not None  # noqa: S101  # only timed cells are picked
        return self.cell.seconds

    @property
    def tied(self) -> list[Contender]:
        return [cell.contender for cell in (self.cell, *self.rivals)]


@dataclass(frozen=True, slots=True)
class Answer:
    """What to use at one length. Fields are None where nothing of the kind was measured.

    ``gain``: how many times faster the approximate pick is than the exact one. ``floor``: the relative error of giving
    every key the same weight, if that was measured too.
    """

    length: int
    exact: Pick | None
    approximate: Pick | None
    gain: stats.Estimate | None = None
    floor: float | None = None

    @property
    def no_better_than_floor(self) -> bool:
        """Whether the approximate pick is about as far from exact attention as looking at nothing, or further."""
        if self.approximate is None or self.floor is None or self.approximate.cell.relative_error is None:
            return False
        return self.approximate.cell.relative_error >= _AT_THE_FLOOR * self.floor

    @property
    def approximation_pays(self) -> bool:
        """Whether the approximate pick is faster than the exact one beyond noise, or has none beside it."""
        if self.approximate is None:
            return False
        if self.exact is None:
            return True
        slower = stats.within_noise(self.exact.cell.samples, self.approximate.cell.samples)
        return not slower and self.approximate.seconds.value < self.exact.seconds.value


def answers(cells: Iterable[Cell]) -> list[Answer]:
    """The answers for the cells of one workload (ground, mask and mode), by length."""
    by_length: dict[int, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_length[cell.length].append(cell)
    return [_answer(length, by_length[length]) for length in sorted(by_length)]


def _answer(length: int, cells: Sequence[Cell]) -> Answer:
    timed = [cell for cell in cells if cell.seconds is not None]
    exact = _fastest(cell for cell in timed if cell.contender.exact)
    approximate = _fastest(cell for cell in timed if not cell.contender.exact and not cell.contender.is_floor)
    floors = [cell.relative_error for cell in timed if cell.contender.is_floor and cell.relative_error is not None]
    gain = stats.ratio(exact.cell.samples, approximate.cell.samples) if exact and approximate else None
    return Answer(length, exact, approximate, gain, min(floors, default=None))


def _fastest(cells: Iterable[Cell]) -> Pick | None:
    ordered = sorted(cells, key=lambda cell: (cell.seconds.value if cell.seconds else 0.0, cell.contender.order))
    if not ordered:
        return None
    best, *others = ordered
    return Pick(best, [cell for cell in others if stats.within_noise(cell.samples, best.samples)])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Lengths that follow each other, at all of which ``contenders`` are the fastest or not to be told from it."""

    lengths: Sequence[int]
    contenders: Sequence[Contender]


def stretches(picks: Mapping[int, Pick | None]) -> list[Stretch]:
    """The picks of one kind, told as few stretches of lengths: ``a`` up to 1k, ``b`` from 2k on."""
    found: list[Stretch] = []
    for length in sorted(picks):
        pick = picks[length]
        if pick is None:
            continue
        common = [contender for contender in found[-1].contenders if contender in pick.tied] if found else []
        if common:
            found[-1] = Stretch([*found[-1].lengths, length], common)
        else:
            found.append(Stretch([length], pick.tied))
    return found
