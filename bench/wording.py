"""How figures are written for people: in a report, on a picture, in a message."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.stats import Estimate

MIB = 1024**2
_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BRACKET_ABOVE = 0.2
_NEARLY_ONE = 0.99
_MOST_REASONS = 3
_MOST_LENGTHS = 12


def number(value: float, digits: int = 3) -> str:
    """``value`` to so many significant digits, never with an exponent: 1234, 12.3, 0.00123."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, decimals)
    # rounding may have made it longer, as 9.996 to 10.00
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded)))) if rounded else decimals
    return f"{rounded:.{decimals}f}"


def duration(seconds: float) -> str:
    """67.1 µs, 1.21 ms, 12.3 s."""
    for scale, unit in _SCALES:
        if seconds >= 0.9995 * scale or unit == "ns":
            return f"{number(seconds / scale)} {unit}"
    raise AssertionError


def mebibytes(size_bytes: float) -> str:
    """In MiB, without the unit: 64.0, 4096, 0.004."""
    mib = size_bytes / MIB
    return number(mib) if mib >= 1 else number(mib, 2)


def size(size_bytes: float) -> str:
    """What a limit is given in: 0.15 GiB, 64.00 MiB, 1.00 KiB."""
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if size_bytes >= scale / 10:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{number(size_bytes / 1024)} KiB"


def length(count: int) -> str:
    """256, 1000, 1k, 128k: k is 1024."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)  # noqa: PLR2004  # k


def about_length(count: float) -> str:
    """A length that is only estimated, to two digits: 830, 3.1k, 12k."""
    return number(count, 2) if count < 1000 else f"{number(count / 1024, 2)}k"  # noqa: PLR2004  # k


def lengths(counts: Iterable[int]) -> str:
    """Some lengths, in order: 256, 1k, 2k; of many, how many they are and from where to where."""
    found = sorted(set(counts))
    if len(found) > _MOST_LENGTHS:
        return f"{length(found[0])} to {length(found[-1])} ({len(found)} of them)"
    return ", ".join(map(length, found))


def percent(share: float) -> str:
    """Of a share, with two significant digits below 10%: 0.42%, 3.1%, 12%."""
    return f"{number(100 * share, 2)}%" if abs(share) < 0.0995 else f"{100 * share:.0f}%"  # noqa: PLR2004  # 10%


def interval(estimate: Estimate) -> str:
    """±0.4%; as bounds where that is wide; ``±?`` where too little was measured."""
    half = estimate.half_width
    if half is None or estimate.low is None or estimate.high is None:
        return "±?"
    if half > _BRACKET_ABOVE:
        return f"[{duration(estimate.low)}, {duration(estimate.high)}]"
    return f"±{percent(half)}"


def time(estimate: Estimate) -> str:
    """1.21 ms ±0.4%."""
    return f"{duration(estimate.value)} {interval(estimate)}"


def times(estimate: Estimate) -> str:
    """A ratio and its interval: 4.3× [4.1, 4.5]."""
    if estimate.low is None or estimate.high is None:
        return f"{factor(estimate.value)} ±?"
    return f"{factor(estimate.value)} [{_plain(estimate.low)}, {_plain(estimate.high)}]"


def factor(value: float) -> str:
    """4.3×, 0.52×, 120×."""
    return f"{_plain(value)}×"


def _plain(value: float) -> str:
    return number(value, 3 if abs(value - 1) < 0.1 or value >= 100 else 2)  # noqa: PLR2004  # near one, digits tell


def exponent(estimate: Estimate) -> str:
    """1.98 [1.95, 2.01]."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def error(value: float) -> str:
    """2.1e-07 where it is rounding, 0.74 where it is an approximation."""
    return number(value, 2) if value == 0 or value >= 0.001 else f"{value:.1e}"  # noqa: PLR2004  # a promille


def cosine(value: float) -> str:
    """0.73, and with the digits that tell it from one where it is nearly that: 0.9953."""
    return f"{value:.2f}" if value < _NEARLY_ONE else f"{value:.4f}"


def listed(names: Sequence[str], conjunction: str = "and") -> str:
    """a; a and b; a, b and c."""
    *most, last = names
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def counted(count: int, noun: str) -> str:
    """1 line, 2 lines; processes."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def reasons(given: Iterable[str]) -> str:
    """The different ones, the most frequent first: three of them, and how many more there are."""
    different = [reason for reason, _ in Counter(given).most_common()]
    more = len(different) - _MOST_REASONS
    others = [f"and {more} more, as the records say"] if more > 0 else []
    return "; ".join([*different[:_MOST_REASONS], *others])


def slug(words: str) -> str:
    """Letters, digits and dashes alone, for the name of a file."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", words).strip("-").lower() or "other"
