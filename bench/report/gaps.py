"""What was not measured and why: cells without a figure, grouped by what they have in common."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from bench.cells import Cell, Contender
from bench.record import Status

# The order in which a reader wants to hear of them: what looks like a mistake first.
STATUSES: dict[Status, str] = {
    "incorrect": "wrong by its own formula",
    "fell_back": "something else ran",
    "failed": "raised an error",
    "crashed": "the process died",
    "timeout": "took too long",
    "out_of_memory": "out of memory",
    "unsupported": "unsupported",
}
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Gap:
    """Cells that lack a figure for one reason, which may differ in its numbers: ``reason`` is that of the first."""

    status: Status
    stage: str
    reason: str
    alike: int
    cells: Sequence[Cell]

    @property
    def contenders(self) -> list[Contender]:
        return sorted({cell.contender for cell in self.cells}, key=lambda contender: contender.order)

    @property
    def in_some_processes(self) -> int:
        """Cells that other processes did measure."""
        return sum(any(record.status == "measured" for record in cell.records) for cell in self.cells)


def gaps(cells: Iterable[Cell]) -> list[Gap]:
    """The gaps, by status and then the largest first. A cell with two reasons is in two of them."""
    members: dict[tuple[Status, str, str], list[tuple[str, Cell]]] = defaultdict(list)
    for cell in cells:
        for status, stage, reason in cell.reasons():
            members[status, stage, without_numbers(reason)].append((reason, cell))
    found = [
        Gap(status, stage, told[0][0], len({reason for reason, _ in told}), list(dict.fromkeys(_cells(told))))
        for (status, stage, _), told in members.items()
    ]
    order = list(STATUSES)
    return sorted(
        found, key=lambda gap: (order.index(gap.status), -len(gap.cells), gap.contenders[0].order, gap.reason)
    )


@lru_cache(maxsize=4096)
def without_numbers(words: str) -> str:
    """What sentences that differ only in their numbers have in common."""
    return _NUMBER.sub("#", words)


def unspoken(cells: Sequence[Cell]) -> int:
    """Combinations of the variants, masks, modes and lengths of one ground that no record speaks of."""
    contenders = len({cell.contender for cell in cells})
    workloads = len({(cell.mask, cell.mode) for cell in cells})
    lengths = len({cell.length for cell in cells})
    return contenders * workloads * lengths - len(cells)


def _cells(told: Iterable[tuple[str, Cell]]) -> Iterable[Cell]:
    return (cell for _, cell in told)
