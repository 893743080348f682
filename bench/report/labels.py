"""Names on pictures: which characters can be shown, and where names go so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from matplotlib.font_manager import findfont
from matplotlib.ft2font import FT2Font

FONT = "DejaVu Sans"  # comes with matplotlib, so that a picture looks the same everywhere
LONGEST, _END = 26, 18  # characters; of a name that is cut, those at its end tell it from others
NAME_POINTS = 8.5
CHARACTER_INCHES, LINE_INCHES = 0.066, 0.165  # what a name takes at that size


def shown(name: str) -> str:
    """A name that fits beside a panel, in characters that the font has; others as their code points.

    What does not fit is cut in its middle: names often begin alike, and parameters stand at their end.
    """
    covered = _covered()
    plain = "".join(letter if ord(letter) in covered else f"\\u{ord(letter):04x}" for letter in name)
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST - 1 - _END]}…{plain[-_END:]}"


@cache
def _covered() -> frozenset[int]:
    return frozenset(FT2Font(findfont(FONT)).get_charmap())


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Sorted ``positions`` moved as little as possible (least squares) so that neighbours are ``gap`` apart.

    Kept within ``low`` and ``high``; where they cannot fit at that gap, evenly between the two.
    """
    count = len(positions)
    if (count - 1) * gap >= high - low:
        return [float(place) for place in np.linspace(low, high, count)]
    # less its own share of gaps, each position may not lie below its neighbour's: an isotonic regression
    blocks: list[tuple[float, int]] = []
    for index, position in enumerate(positions):
        mean, size = position - index * gap, 1
        while blocks and blocks[-1][0] > mean:
            below, members = blocks.pop()
            mean, size = (mean * size + below * members) / (size + members), size + members
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    top = high - (count - 1) * gap
    return [min(max(mean, low), top) + index * gap for index, mean in enumerate(flat)]
