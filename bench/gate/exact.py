"""Gates without a tolerance, on figures that do not vary: any that is worse in head is found, however little.

Fidelity alone has some, since rounding may fall otherwise when sums are ordered otherwise: 4·eps of the dtype.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bench import wording
from bench.gate.decision import Comparison, Failure
from bench.gate.pairs import Side
from bench.gate.policy import DEFAULT, Policy
from bench.record import Case

Gate = Literal[
    "figures",
    "memory",
    "flops",
    "dispatch",
    "recompiles",
    "graph breaks",
    "own error",
    "fidelity",
    "time exponent",
    "memory exponent",
]

_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDING = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An exact figure that differs. ``fails`` None: it is better, accepted by the policy, or advisory.

    ``series``: the exponent of a series of lengths, of which ``case`` is the longest.
    """

    case: Case
    gate: Gate
    base: str
    head: str
    fails: Failure | None
    note: str = ""
    series: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """An exact figure of both sides in words, before the policy has looked at it."""

    gate: Gate
    base: str
    head: str
    fails: Failure | None


def find(cells: Sequence[Comparison], policy: Policy = DEFAULT, *, today: dt.date | None = None) -> list[Finding]:
    """What differs in the exact figures of cells that both sides measured."""
    today = today or dt.datetime.now(tz=dt.UTC).date()
    return [
        excused(cell.case, difference, policy, today)
        for cell in cells
        if cell.base.is_measured and cell.head.is_measured
        for difference in _differences(cell.case, cell.base, cell.head)
    ]


def excused(case: Case, difference: Difference, policy: Policy, today: dt.date, *, series: bool = False) -> Finding:
    """A difference as it stands before the policy."""
    reason = policy.acceptance(case, difference.gate, today)
    advisory = policy.advisory_reason(case)
    note = f"accepted: {reason}" if reason is not None else f"advisory: {advisory}" if advisory is not None else ""
    return Finding(
        case=case,
        gate=difference.gate,
        base=difference.base,
        head=difference.head,
        fails=None if note else difference.fails,
        note=note,
        series=series,
    )


def _differences(case: Case, base: Side, head: Side) -> Iterator[Difference]:
    yield from _memory(base, head)
    yield from _flops(base, head)
    if base.dispatched != head.dispatched and set(base.dispatched) != set(head.dispatched):
        gone = [name for name in base.dispatched if name not in head.dispatched]
        new = [name for name in head.dispatched if name not in base.dispatched]
        yield Difference("dispatch", _names(gone), _names(new), "regression")
    yield from _count("recompiles", base.recompiles, head.recompiles)
    yield from _count("graph breaks", base.graph_breaks, head.graph_breaks)
    yield from _own_error("output", base.own_error, head.own_error, head.tolerance)
    yield from _own_error("gradient", base.gradient_error, head.gradient_error, head.gradient_tolerance)
    yield from _fidelity(case, base, head)


def _memory(base: Side, head: Side) -> Iterator[Difference]:
    before, after = base.peak_bytes, head.peak_bytes
    if before is None or before == after:
        return
    said = "not weighed" if after is None else f"{after:,} bytes"
    # every call has an output: a peak of nothing is a peak that nobody saw
    fails: Failure | None = "incomparable" if not after else "regression" if after > before else None
    yield Difference("memory", f"{before:,} bytes", said, fails)


def _flops(base: Side, head: Side) -> Iterator[Difference]:
    if base.useful_flops != head.useful_flops:
        yield Difference("figures", f"{base.useful_flops} useful FLOPs", str(head.useful_flops), "incomparable")
    before, after = base.issued_flops, head.issued_flops
    if before is None or before == after:
        return
    fails: Failure | None = "incomparable" if not after else "regression" if after > before else None
    yield Difference("flops", f"{before:,}", "not counted" if after is None else f"{after:,}", fails)


def _count(gate: Gate, before: int | None, after: int | None) -> Iterator[Difference]:
    if before is None or before == after:
        return
    if after is None:
        yield Difference(gate, str(before), "not counted", "incomparable")
    else:
        yield Difference(gate, str(before), str(after), "regression" if after > before else None)


def _own_error(what: str, before: float | None, after: float | None, tolerance: float | None) -> Iterator[Difference]:
    if before is not None and after is None:
        yield Difference("own error", f"{what} {wording.error(before)}", "not checked", "incomparable")
    if after is not None and tolerance is not None and after > tolerance:
        said = f"{what} {wording.error(after)}, over {wording.error(tolerance)}"
        yield Difference("own error", "not checked" if before is None else wording.error(before), said, "regression")


def _fidelity(case: Case, base: Side, head: Side) -> Iterator[Difference]:
    slack = _ROUNDING * _EPSILON[case.workload.dtype]
    if base.fidelity is None:
        return
    for name, sign in (("relative_error", 1), ("cosine", -1), ("mass_recall", -1)):
        before = getattr(base.fidelity, name)
        after = None if head.fidelity is None else getattr(head.fidelity, name)
        words = name.replace("_", " ")
        if before is None:
            continue
        if after is None:
            yield Difference("fidelity", f"{words} {wording.error(before)}", "not known", "incomparable")
        elif abs(after - before) > slack:
            fails: Failure | None = "regression" if sign * (after - before) > 0 else None
            yield Difference("fidelity", f"{words} {wording.number(before, 6)}", wording.number(after, 6), fails)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing else"
