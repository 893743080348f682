"""Which query rows the oracle looks at."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from variants._contract import Workload

MOST_ROWS = 32
LEAST_ROWS = 6

_SCORES_BYTES = 8 * 1024**2
_BLOCK_EDGES = (64, 128)


def how_many(workload: Workload) -> int:
    """As many rows as keep their float64 scores, B · H · rows · Nk · 8 bytes, in 8 MiB; 6 to 32 of them."""
    row_bytes = workload.batch * workload.heads * workload.key_length * 8
    return min(workload.query_length, max(LEAST_ROWS, min(MOST_ROWS, _SCORES_BYTES // row_bytes)))


def sample(workload: Workload, count: int) -> Tensor:
    """``count`` query positions in order: the first and the last, block edges, and random ones; ``(count,)`` int64.

    Edges are the rows before and after multiples of 64 and 128 next to both ends and the middle. Seeded.
    """
    length = workload.query_length
    draw = random.Random(f"rows:{length}:{workload.seed}")  # noqa: S311  # no secret
    wanted = [length - 1, 0, *_edges(length), *draw.sample(range(length), min(length, 2 * count))]
    chosen = [row for row in dict.fromkeys(wanted) if 0 <= row < length][:count]
    return torch.tensor(sorted(chosen))


def _edges(length: int) -> list[int]:
    """Rows around block edges, the most telling first."""
    edges: list[int] = []
    for size in _BLOCK_EDGES:
        for multiple in (size, length // size * size, length // 2 // size * size):
            edges += [multiple, multiple - 1]
    return edges
