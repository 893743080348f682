"""Where a fidelity lies between looking at nothing and looking at the right keys for as much work.

The floor is ``uniform``, all keys with one weight. The ceiling is ``topk`` at equal budget, in keys a query: nothing
that gives each query so many keys can choose better ones by score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from bench import wording
from bench.cells import Cell

_CEILING = "topk"


def fractions(cells: Iterable[Cell]) -> dict[Cell, float]:
    """(floor − error) / (floor − ceiling) of each approximate cell, by workload and length.

    ``cells`` are of one ground. 0 is no better than the floor, 1 as good as the ceiling. There is none without a floor
    or a ceiling beside it, and none for a budget outside those at which the ceiling was measured.
    """
    places: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in cells:
        places.setdefault((cell.mask, cell.mode, cell.length), []).append(cell)
    return {cell: share for members in places.values() for cell, share in _at_one_place(members)}


def _at_one_place(cells: Sequence[Cell]) -> Iterable[tuple[Cell, float]]:
    floors = [cell.relative_error for cell in cells if cell.contender.is_floor and cell.relative_error is not None]
    ceiling = {keys: cell.relative_error for cell in cells if is_ceiling(cell) for keys in [budget(cell)] if keys}
    known = {keys: error for keys, error in ceiling.items() if error is not None}
    if not floors or not known:
        return
    floor = min(floors)
    for cell in cells:
        if cell.contender.is_floor:
            yield cell, 0.0
            continue
        keys = budget(cell)
        best = None if keys is None else interpolated(known, keys)
        if cell.contender.exact or cell.relative_error is None or best is None or best >= floor:
            continue
        yield cell, (floor - cell.relative_error) / (floor - best)


def is_ceiling(cell: Cell) -> bool:
    """Whether nothing can choose as many keys better."""
    return cell.contender.variant == _CEILING


def budget(cell: Cell) -> float | None:
    """In keys a query: those with a weight where some have none, else what its FLOPs would pay for when exact."""
    keys = cell.workload.key_length
    chosen = json.loads(cell.contender.parameters).get("k") if is_ceiling(cell) else None
    if isinstance(chosen, (int, float)) and cell.mask == "full":
        return float(min(chosen, keys))
    density = cell.figures["density"]
    if density is not None and 0 < density < 1:
        return density * keys
    useful, issued = cell.figures["useful_flops"], cell.figures["issued_flops"]
    return issued / useful * keys if useful and issued else None


def interpolated(errors: Mapping[float, float], keys: float) -> float | None:
    """Of errors by budget that at ``keys``, linear in the logarithm of the budget; None outside."""
    known = sorted(errors)
    if not known[0] <= keys <= known[-1]:
        return None
    above = next(one for one in known if one >= keys)
    below = max(one for one in known if one <= keys)
    if above == below:
        return errors[above]
    share = math.log(keys / below) / math.log(above / below)
    return errors[below] + share * (errors[above] - errors[below])


def note(cells: Sequence[Cell], found: Mapping[Cell, float]) -> str:
    """What the fraction means, and of whom there is none because their budget lies outside; empty without any."""
    here = [cell for cell in cells if cell in found]
    if not here:
        return ""
    known = [keys for cell in cells if is_ceiling(cell) for keys in [budget(cell)] if keys]
    outside = {
        cell.contender.label: round(keys)
        for cell in cells
        if cell not in found and not cell.contender.exact and cell.relative_error
        for keys in [budget(cell)]
        if keys and not min(known) <= keys <= max(known)
    }
    told = [f"{label} ({keys})" for label, keys in outside.items()]
    none = f" Nor for {wording.listed(told)}: outside the budgets of topk." if told else ""
    return (
        "*Of the way*: how far the error is from that of uniform weights (0) to that of topk (1) at equal budget. "
        "The budget is keys a query: those with a weight where some have none, else what the FLOPs issued would pay "
        f"for in exact attention; topk was measured from {min(known):.0f} to {max(known):.0f}. None where topk itself "
        f"is no better than uniform weights.{none}"
    )
