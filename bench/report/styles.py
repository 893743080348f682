"""How a variant looks on every picture: its colour, marker and line, the same whatever else is shown.

Approximations share a hue by family. Colours keep apart for colour-blind readers as far as sixteen can; markers and
line styles carry the rest, and all of it in greyscale. A second set of parameters has the same colour and open markers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from bench.report.colours import (
    BLACK,
    BLUE,
    BROWN,
    GREEN,
    GREY,
    LEAF,
    LILAC,
    OLIVE,
    ORANGE,
    PINK,
    PURPLE,
    SKY,
    TEAL,
    VERMILION,
    WINE,
)

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


_STYLES = {
    "naive_sdpa": Style(BLACK, "o"),
    "chunked_mha": Style(VERMILION, "s"),
    "sdpa_math": Style(GREY, "v", "--"),
    "sdpa_flash": Style(BLUE, "^"),
    "sdpa_efficient": Style(SKY, "D", "-."),
    "sdpa_cudnn": Style(WINE, "P", "--"),
    "sdpa_auto": Style(SKY, "x", ":"),
    "flex": Style(GREEN, "*"),
    "xformers": Style(LILAC, "X", "-."),
    "flash_attn": Style(PURPLE, "p"),
    "sdpa_expanded_kv": Style(BROWN, "H", "--"),
    "linformer": Style(ORANGE, "o"),
    "linformer_pytorch": Style(BROWN, "s", "--"),
    "nystrom": Style(ORANGE, "h"),
    "nystrom_attention": Style(BROWN, "H", "--"),
    "reformer_lsh": Style(PURPLE, "^"),
    "reformer_pytorch": Style(LILAC, "v", "--"),
    "bigbird": Style(GREEN, "D"),
    "flex_bigbird": Style(LEAF, "P", "--"),
    "local": Style(GREEN, "<", "-."),
    "flex_local": Style(LEAF, ">", "--"),
    "topk": Style(GREEN, "X", ":"),
    "performer": Style(TEAL, "*"),
    "performer_pytorch": Style(SKY, "p", "--"),
    "linear_attention": Style(TEAL, "s", "-."),
    "fast_weight": Style(BLUE, "8"),
    "uniform": Style(GREY, "d", ":"),
}

_FAMILIES = {
    "exact": (BLUE, VERMILION, BLACK, WINE),
    "sparse": (GREEN, LEAF),
    "low_rank": (ORANGE, BROWN),
    "hashing": (PURPLE, LILAC),
    "kernel": (TEAL, SKY),
    "recurrent": (BLUE,),
    "positional": (PINK,),
    "scoring": (OLIVE,),
    "floor": (GREY,),
}
_OTHERS = (BLUE, SKY, TEAL, VERMILION, WINE)
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
