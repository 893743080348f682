"""What to use for one shape: of all that was measured, the fastest that keeps the limits on memory and fidelity.

Between two measured lengths figures are interpolated, as powers of the length, and said to be; beyond them nothing is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from bench import stats, wording
from bench.cells import Cell, Contender, Ground
from bench.errors import NotComparableError, unknown
from bench.report import repeat
from bench.stats import Estimate
from variants._contract import DTYPES

_EVERY = {"dtype": DTYPES, "device": ("cpu", "cuda")}  # whatever else was not measured could be


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
        WrongUsageError: a type or device that no record can have.
        NotComparableError: nothing was measured there, or the length lies outside of what was; it says how to.

    """
    grounds = {ground: cells for ground, cells in gathered.items() if ground.queries is None and ground.keys is None}
    for name, value in need.narrowed.items():
        if name in _EVERY and value not in _EVERY[name]:
            raise unknown(name, value, _EVERY[name])
    for name, value in need.narrowed.items():
        fitting = {ground: cells for ground, cells in grounds.items() if str(_dimension(ground, name)) == str(value)}
        if not fitting:
            found = sorted({str(_dimension(ground, name)) for ground in grounds}, key=lambda one: (len(one), one))
            raise _not_measured(f"{name.replace('_', ' ')} {value}", found, need, grounds)
        grounds = fitting
    for what in ("mask", "mode"):
        value = getattr(need, what)
        fitting = {
            ground: fit
            for ground, cells in grounds.items()
            if (fit := [cell for cell in cells if getattr(cell, what) == value])
        }
        if not fitting:
            found = sorted({getattr(cell, what) for cells in grounds.values() for cell in cells})
            raise _not_measured(f"{what} {value}", found, need, grounds)
        grounds = fitting
    every = [_advice(ground, cells, need) for ground, cells in grounds.items()]
    told = [advice for advice in every if advice.exact or advice.approximate or advice.refused]
    if not told:
        lengths = wording.lengths(cell.length for cells in grounds.values() for cell in cells if cell.seconds)
        wanted = f"length {wording.length(need.length)} for {need.mask}, {need.mode}"
        raise _not_measured(wanted, [lengths] if lengths else [], need, grounds)
    return told


def _dimension(ground: Ground, name: str) -> object:
    return ground.settings.threads if name == "threads" else getattr(ground, name)


def _not_measured(
    wanted: str, found: Sequence[str], need: Need, grounds: Mapping[Ground, Sequence[Cell]]
) -> NotComparableError:
    """That it was not, what was, and the command that does: as the nearest ground that there is was measured."""
    there = f"found {', '.join(found)}" if found else "found nothing that was timed"
    if not grounds:
        how = "measure with 'run' first"
    elif "device_name" in need.narrowed and wanted.startswith("device name"):
        how = "give runs of that machine"
    else:
        ground, cells = next(iter(grounds.items()))
        how = f"measure it with: {_command_for(need, ground, cells)}"
    return NotComparableError(f"expected something timed with {wanted}, {there}; {how}")


def _command_for(need: Need, ground: Ground, cells: Sequence[Cell]) -> str:
    """The command that repeats this ground, with all that is needed in place of what was measured."""
    changes: dict[str, Any] = dict(need.narrowed)
    changes.pop("device_name", None)
    settings = ground.settings
    if threads := changes.pop("threads", None):
        settings = msgspec.structs.replace(settings, threads=threads)
    heads, kv_heads = changes.get("heads", ground.heads), ground.kv_heads
    if ground.kv_heads == ground.heads or heads % kv_heads:  # it cannot stay, or is to be as many
        changes.setdefault("kv_heads", heads)
    wanted = dataclasses.replace(ground, settings=settings, **changes)
    moved = [dataclasses.replace(cell, mask=need.mask, mode=need.mode, length=need.length) for cell in cells]
    return repeat.command(wanted, moved)


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
    if size_bytes < 1024:  # noqa: PLR2004  # a KiB
        return wording.counted(round(size_bytes), "byte")
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
