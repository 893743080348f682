"""What to use for one shape: of all that was measured, the fastest that keeps the limits on memory and fidelity.

Between two measured lengths figures are interpolated, as powers of the length, and said to be; beyond them nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench import stats, wording
from bench.cells import Cell, Contender, Ground
from bench.errors import NotComparableError, unknown
from bench.stats import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A shape, and what it allows: ``most_bytes`` of memory, ``least_cosine`` and ``most_error`` to exact attention.

    ``narrowed`` holds values of other dimensions, by which runs over several of them are narrowed.
    """

    length: int
    mask: str
    mode: str
    narrowed: Mapping[str, str | int]
    most_bytes: int | None = None
    least_cosine: float | None = None
    most_error: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A contender at the length that is asked for; ``between`` are the lengths of interpolated figures."""

    contender: Contender
    seconds: Estimate
    peak_bytes: float | None
    cosine: float | None
    relative_error: float | None
    cells: Sequence[Cell]
    between: tuple[int, int] | None = None

    def objections(self, need: Need) -> list[str]:
        """The limits that it does not keep. What is not known is not kept."""
        return self._too_large(need) if self.contender.exact else [*self._too_large(need), *self._too_far(need)]

    def _too_large(self, need: Need) -> list[str]:
        if need.most_bytes is None:
            return []
        if self.peak_bytes is None:
            return ["memory not measured"]
        over = self.peak_bytes > need.most_bytes
        return [f"takes {_size(self.peak_bytes)} of {_size(need.most_bytes)}"] if over else []

    def _too_far(self, need: Need) -> list[str]:
        found = []
        if need.least_cosine is not None:
            if self.cosine is None:
                found.append("fidelity not measured")
            elif self.cosine < need.least_cosine:
                found.append(f"fidelity {_below(self.cosine, need.least_cosine)} is below {need.least_cosine:g}")
        if need.most_error is not None:
            if self.relative_error is None:
                found.append("error not measured")
            elif self.relative_error > need.most_error:
                found.append(f"error {wording.error(self.relative_error)} is above {need.most_error:g}")
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest candidate, and those that the measurement cannot tell from it, fastest first."""

    best: Candidate
    rivals: Sequence[Candidate]


@dataclass(frozen=True, slots=True)
class Advice:
    """What one ground says: the choice of each kind, why the others are none, and which have no figure at all.

    ``gain``: how many times faster the approximate choice is than the exact one, with both. ``pays``: whether
    it is surely faster, or the only one.
    """

    ground: Ground
    exact: Choice | None
    approximate: Choice | None
    refused: Sequence[tuple[Candidate, Sequence[str]]]
    unmeasured: Sequence[tuple[Contender, str]]
    gain: Estimate | None = None
    pays: bool = False


def advise(gathered: Mapping[Ground, Sequence[Cell]], need: Need) -> list[Advice]:
    """What every ground that fits the need says, in order.

    Raises:
        WrongUsageError: a mask, mode or other dimension that no record has.
        NotComparableError: the length lies outside of what was measured for this shape.

    """
    grounds = {ground: cells for ground, cells in gathered.items() if ground.queries is None and ground.keys is None}
    for name, value in need.narrowed.items():
        known = {str(_dimension(ground, name)) for ground in grounds}
        if str(value) not in known:
            raise unknown(name.replace("_", " "), str(value), sorted(known))
        grounds = {ground: cells for ground, cells in grounds.items() if str(_dimension(ground, name)) == str(value)}
    for what in ("mask", "mode"):
        known = {getattr(cell, what) for cells in grounds.values() for cell in cells}
        if getattr(need, what) not in known:
            raise unknown(what, getattr(need, what), sorted(known))
    members = {
        ground: [cell for cell in cells if (cell.mask, cell.mode) == (need.mask, need.mode)]
        for ground, cells in grounds.items()
    }
    found = [_advice(ground, cells, need) for ground, cells in members.items()]
    told = [advice for advice in found if advice.exact or advice.approximate or advice.refused]
    if not told:
        raise NotComparableError(_nothing_for(need, [cell for cells in members.values() for cell in cells]))
    return told


def _dimension(ground: Ground, name: str) -> object:
    return ground.settings.threads if name == "threads" else getattr(ground, name)


def _nothing_for(need: Need, cells: Sequence[Cell]) -> str:
    lengths = {cell.length for cell in cells if cell.seconds}
    shape = f"{need.mask}, {need.mode}"
    if not lengths:
        return f"expected something timed for {shape}, found nothing: measure with 'run' first"
    return (
        f"expected figures at length {wording.length(need.length)} for {shape}, found them at "
        f"{wording.lengths(lengths)}: measure it with 'run --seq-len {wording.length(need.length)}'"
    )


def _advice(ground: Ground, cells: Sequence[Cell], need: Need) -> Advice:
    by_contender: dict[Contender, list[Cell]] = {}
    for cell in cells:
        if not cell.contender.is_floor:
            by_contender.setdefault(cell.contender, []).append(cell)
    fit, refused, unmeasured = [], [], []
    for contender, members in by_contender.items():
        candidate = _candidate(contender, members, need.length)
        if candidate is None:
            unmeasured.append((contender, _why_not(members, need.length)))
        elif objections := candidate.objections(need):
            refused.append((candidate, objections))
        else:
            fit.append(candidate)
    exact = _choice([candidate for candidate in fit if candidate.contender.exact])
    approximate = _choice([candidate for candidate in fit if not candidate.contender.exact])
    gain, pays = None, approximate is not None
    if exact and approximate:
        gain = _ratio(exact.best, approximate.best)
        pays = gain.value > 1 and not _within_noise(exact.best, approximate.best)
    return Advice(ground, exact, approximate, refused, unmeasured, gain, pays)


def _candidate(contender: Contender, cells: Sequence[Cell], length: int) -> Candidate | None:
    """From the cell of that length, or from its neighbours if it has one on each side."""
    timed = sorted((cell for cell in cells if cell.seconds), key=lambda cell: cell.length)
    for cell in timed:
        if cell.length == length and cell.seconds:
            return Candidate(contender, cell.seconds, cell.peak_bytes, cell.cosine, cell.relative_error, [cell])
    if any(cell.length == length for cell in cells):  # it was tried, and has no time
        return None
    for below, above in pairwise(timed):
        if below.length < length < above.length:
            return _between(contender, below, above, length)
    return None


def _between(contender: Contender, below: Cell, above: Cell, length: int) -> Candidate:
    share = math.log(length / below.length) / math.log(above.length / below.length)

    def at(low: float | None, high: float | None) -> float | None:
        return math.exp((1 - share) * math.log(low) + share * math.log(high)) if low and high else None

    one, other = below.seconds, above.seconds
    assert one is not None  # noqa: S101  # both were timed
    assert other is not None  # noqa: S101
    value = at(one.value, other.value)
    assert value is not None  # noqa: S101  # times are above zero
    cosines = [cell.cosine for cell in (below, above)]
    errors = [cell.relative_error for cell in (below, above)]
    return Candidate(
        contender,
        Estimate(value, at(one.low, other.low), at(one.high, other.high)),
        at(below.peak_bytes, above.peak_bytes),
        min(known) if len(known := [cosine for cosine in cosines if cosine is not None]) > 1 else None,
        max(known) if len(known := [error for error in errors if error is not None]) > 1 else None,
        [below, above],
        (below.length, above.length),
    )


def _why_not(cells: Sequence[Cell], length: int) -> str:
    lengths = [cell.length for cell in cells if cell.seconds]
    for cell in cells:
        if cell.status != "measured" and (cell.length == length or not lengths):
            return "; ".join(dict.fromkeys(reason for _, _, reason in cell.reasons())) or cell.status
    return f"timed at {wording.lengths(lengths)} alone" if lengths else "not timed"


def _choice(candidates: Sequence[Candidate]) -> Choice | None:
    ordered = sorted(candidates, key=lambda candidate: (candidate.seconds.value, candidate.contender.order))
    if not ordered:
        return None
    best, *others = ordered
    return Choice(best, [other for other in others if _within_noise(other, best)])


def _within_noise(one: Candidate, other: Candidate) -> bool:
    """Interpolated ones are as sure as the less sure of their ends."""
    if one.between is None and other.between is None:
        return stats.within_noise(one.cells[0].samples, other.cells[0].samples)
    if None in (one.seconds.low, one.seconds.high, other.seconds.low, other.seconds.high):
        return True
    ratio = _ratio(one, other)
    return (ratio.low or 0) <= 1 or ratio.value < 1 + stats.SINGLE_PROCESS_MARGIN


def _ratio(slow: Candidate, fast: Candidate) -> Estimate:
    if slow.between is None and fast.between is None:
        return stats.ratio(slow.cells[0].samples, fast.cells[0].samples)
    return stats.ratio_of_estimates(slow.seconds, fast.seconds)


def _below(cosine: float, least: float) -> str:
    """A cosine, with every digit where rounded it would not look smaller than the least."""
    told = wording.cosine(cosine)
    return told if float(told) < least else str(cosine)


def _size(size_bytes: float) -> str:
    return f"{wording.mebibytes(size_bytes)} MiB"


# --- told ---------------------------------------------------------------------------------------------------


def evidence(candidate: Candidate) -> str:
    """Time with its interval, memory and fidelity."""
    told = [wording.time(candidate.seconds)]
    told.append("memory not measured" if candidate.peak_bytes is None else _size(candidate.peak_bytes))
    if not candidate.contender.exact:
        told.append(
            "fidelity not measured" if candidate.cosine is None else f"fidelity {wording.cosine(candidate.cosine)}"
        )
        if candidate.relative_error is not None:
            told.append(f"error {wording.error(candidate.relative_error)}")
    if candidate.between is not None:
        low, high = map(wording.length, candidate.between)
        told.append(f"interpolated between {low} and {high}")
    return ", ".join(told)
