"""What all pictures share: fonts, a title, and how they become bytes, the same for the same figure.

Matplotlib's object-oriented interface alone, so that nothing global changes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.report import colours
from bench.report.labels import FONT

_RC: dict[str, Any] = {
    "font.family": FONT,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.edgecolor": colours.INK,
    "axes.labelcolor": colours.INK,
    "xtick.labelcolor": colours.INK,
    "ytick.labelcolor": colours.INK,
    "xtick.color": colours.FAINT,
    "ytick.color": colours.FAINT,
    "text.color": colours.INK,
    "axes.facecolor": colours.PAPER,
    "axes.unicode_minus": False,
    "svg.hashsalt": "attention-bench",
    "svg.fonttype": "path",
    "path.simplify": False,
    "text.parse_math": False,
}
_PIXELS_PER_INCH = 130

TITLE_INCHES = 0.46


def settings() -> AbstractContextManager[Any]:
    """Matplotlib's settings while something is drawn."""
    return mpl.rc_context(_RC)  # type: ignore[arg-type]  # its keys are a literal of hundreds


@dataclass(frozen=True, eq=False)
class Picture:
    """What ``draw`` draws, with a title above: for light and for dark pages, and as pixels.

    Nothing is drawn before it is asked for, since that takes longest; see :mod:`bench.report.drawing`.
    """

    draw: Callable[[], Figure]
    title: str

    @property
    def svg(self) -> bytes:
        return self._drawn[0]

    @property
    def dark_svg(self) -> bytes:
        return colours.dark(self.svg)

    @property
    def png(self) -> bytes:
        return self._drawn[1]

    @cached_property
    def _drawn(self) -> tuple[bytes, bytes]:
        with settings():
            figure = self.draw()
            x, y = 0.12 / figure.get_figwidth(), 1 - 0.2 / figure.get_figheight()
            figure.text(x, y, self.title, fontsize=10.5, fontweight="bold", va="center")
            return _rendered(figure, "svg"), _rendered(figure, "png")


def _rendered(figure: Figure, form: Literal["svg", "png"]) -> bytes:
    metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=_PIXELS_PER_INCH, facecolor=colours.PAPER, metadata=metadata)
    return buffer.getvalue()
