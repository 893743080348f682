"""Which pairs a variant really attends to, as it was recorded when it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.cells import Cell
    from bench.report.canvas import Picture


def draw(cells: Sequence[Cell]) -> Picture | None:
    """None where no record has a map."""
    del cells
    return None
