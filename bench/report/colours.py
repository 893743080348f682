"""Every colour of a picture and its twin on a dark page: the dark picture is the light one with its colours changed."""

from __future__ import annotations

import re
from collections.abc import Mapping

PAPER, INK, FAINT, GRID, SHADE = "#ffffff", "#222222", "#8a8a8a", "#e6e6e6", "#c8c8c8"
# Not quite black, which is what SVG leaves out.
BLACK, GREY, BLUE, SKY, TEAL = "#010101", "#7f7f7f", "#0072b2", "#56b4e9", "#00a0a0"
GREEN, LEAF, ORANGE, BROWN, VERMILION = "#117733", "#5aae61", "#e69f00", "#994f00", "#d55e00"
PURPLE, LILAC, WINE, PINK, OLIVE = "#762a83", "#af8dc3", "#882255", "#cc79a7", "#8c8c2b"

_TWINS = {
    PAPER: "#0d1117",
    INK: "#e6edf3",
    FAINT: "#848d97",
    GRID: "#262c36",
    SHADE: "#4b535d",
    BLACK: "#f0f6fc",
    GREY: "#a5adb7",
    BLUE: "#3d9be9",
    SKY: "#9bd5ff",
    TEAL: "#2cc5c5",
    GREEN: "#35b35f",
    LEAF: "#9fe3a4",
    ORANGE: "#f5b93a",
    BROWN: "#d2894a",
    VERMILION: "#ff7b3d",
    PURPLE: "#b380e0",
    LILAC: "#dcc3f2",
    WINE: "#e0658f",
    PINK: "#f2a6cf",
    OLIVE: "#c9c95a",
}

# How many times slower or faster, in colour: orange, paper, blue. On a dark page from bright over dark to bright.
# Orange is never as deep as blue, nor as bright on a dark page, so that they differ in greyscale too.
_LEVELS = 12
_SLOW, _SAME, _FAST = (0xE8, 0x8B, 0x38), (0xF6, 0xF6, 0xF6), (0x0B, 0x4F, 0x94)
_SLOW_DARK, _SAME_DARK, _FAST_DARK = (0xA8, 0x52, 0x10), (0x1B, 0x21, 0x29), (0x6C, 0xB6, 0xFF)
ON_PALE, ON_DEEP = "#1c1c1d", "#fdfdfe"  # words on cells of these colours
_DEEP = 0.72


def dark(svg: bytes) -> bytes:
    """The picture for a dark page.

    Raises:
        KeyError: a colour that has no twin.

    """
    return _COLOUR.sub(lambda found: found[1] + _ALL_TWINS[found[2].decode()].encode(), svg)


_COLOUR = re.compile(rb"((?:fill|stroke|stop-color): ?)(#[0-9a-f]{6})")


def diverging(share: float) -> tuple[str, str]:
    """The colour of a cell and of the words on it; from −1, slowest, over 0, the same, to 1, fastest."""
    level = round(max(-1.0, min(1.0, share)) * _LEVELS)
    return _cell(level, _SLOW, _SAME, _FAST), ON_DEEP if level > _DEEP * _LEVELS else ON_PALE


def sequential(share: float) -> str:
    """From paper, 0, to the deepest blue, 1."""
    return _cell(round(max(0.0, min(1.0, share)) * _LEVELS), _SLOW, _SAME, _FAST)


def _cell(level: int, slow: tuple[int, ...], same: tuple[int, ...], fast: tuple[int, ...]) -> str:
    share, end = abs(level) / _LEVELS, fast if level > 0 else slow
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(same, end, strict=True))


_ALL_TWINS: Mapping[str, str] = {
    **_TWINS,
    ON_PALE: "#f3f3f4",
    ON_DEEP: "#08090a",
    **{
        _cell(level, _SLOW, _SAME, _FAST): _cell(level, _SLOW_DARK, _SAME_DARK, _FAST_DARK)
        for level in range(-_LEVELS, _LEVELS + 1)
    },
}
