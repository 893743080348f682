"""How a variant looks on every picture: its colour, marker and line, the same whatever else is shown.

Approximations share a hue by family. Colours keep apart for colour-blind readers as far as sixteen can; markers and
line styles carry the rest, and all of it in greyscale. A second set of parameters has the same colour and open markers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bench.cells import Contender

Line = Literal["-", "--", "-.", ":"]


@dataclass(frozen=True, slots=True)
class Style:
    """``marker`` and ``line`` as matplotlib spells them."""

    colour: str
    marker: str
    line: Line = "-"
    is_open: bool = False


_BLACK, _GREY, _BLUE, _SKY, _TEAL = "#000000", "#7f7f7f", "#0072b2", "#56b4e9", "#00a0a0"
_GREEN, _LEAF, _ORANGE, _BROWN, _VERMILION = "#117733", "#5aae61", "#e69f00", "#994f00", "#d55e00"
_PURPLE, _LILAC, _WINE = "#762a83", "#af8dc3", "#882255"

_STYLES = {
    "naive_sdpa": Style(_BLACK, "o"),
    "chunked_mha": Style(_VERMILION, "s"),
    "sdpa_math": Style(_GREY, "v", "--"),
    "sdpa_flash": Style(_BLUE, "^"),
    "sdpa_efficient": Style(_SKY, "D", "-."),
    "sdpa_cudnn": Style(_WINE, "P", "--"),
    "sdpa_auto": Style(_SKY, "x", ":"),
    "flex": Style(_GREEN, "*"),
    "xformers": Style(_LILAC, "X", "-."),
    "linformer": Style(_ORANGE, "o"),
    "linformer_pytorch": Style(_BROWN, "s", "--"),
    "reformer_lsh": Style(_PURPLE, "^"),
    "reformer_pytorch": Style(_LILAC, "v", "--"),
    "bigbird": Style(_GREEN, "D"),
    "flex_bigbird": Style(_LEAF, "P", "--"),
    "uniform": Style(_GREY, "d", ":"),
}

_FAMILIES = {
    "exact": (_BLUE, _VERMILION, _BLACK, _WINE),
    "sparse": (_GREEN, _LEAF),
    "low_rank": (_ORANGE, _BROWN),
    "hashing": (_PURPLE, _LILAC),
    "floor": (_GREY,),
}
_OTHERS = (_BLUE, _SKY, _TEAL, _VERMILION, _WINE)
_MARKERS = ("h", "p", "<", ">", "8", "H")
_LINES: tuple[Line, ...] = ("-", "--", "-.", ":")


def style(contender: Contender) -> Style:
    """Of a variant that nobody has met, one drawn from its name, in a colour of its family."""
    known = _STYLES.get(contender.variant) or _drawn(contender.variant, contender.family)
    if not contender.sibling:
        return known
    line = _LINES[(_LINES.index(known.line) + contender.sibling) % len(_LINES)]
    return replace(known, line=line, is_open=True)


def _drawn(variant: str, family: str) -> Style:
    colours = _FAMILIES.get(family, _OTHERS)
    seed = zlib.crc32(variant.encode())
    seed, marker = divmod(seed, len(_MARKERS))
    seed, colour = divmod(seed, len(colours))
    return Style(colours[colour], _MARKERS[marker], _LINES[seed % len(_LINES)])
