"""What two sides of a comparison measured of one case, process by process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.cells import SEVEREST
from bench.errors import NotComparableError
from bench.record import About, Case, Fidelity, Measured, OutOfMemory, Record, Status, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What became of a case on one side, and the figures that do not vary.

    ``status`` None: the case is not there at all. ``predicted``: it ran out of memory by prediction alone, and so was
    not tried. ``why``: the reason where it was not measured. ``peak_bytes`` is None where it was not weighed.
    """

    status: Status | None = None
    predicted: bool = False
    why: str = ""
    peak_bytes: int | None = None
    useful_flops: int | None = None
    issued_flops: int | None = None
    dispatched: tuple[str, ...] = ()
    recompiles: int | None = None
    graph_breaks: int | None = None
    own_error: float | None = None
    tolerance: float | None = None
    gradient_error: float | None = None
    gradient_tolerance: float | None = None
    fidelity: Fidelity | None = None

    @property
    def is_measured(self) -> bool:
        return self.status == "measured"

    @staticmethod
    def of(records: Sequence[Record]) -> Side:
        """One side from the records of all its processes: of their statuses the severest, of each figure the worst."""
        if not records:
            return Side()
        severest = min(records, key=lambda record: SEVEREST.index(record.status))
        if severest.status != "measured":
            match severest.outcome:
                case OutOfMemory(stage="predicted", message=message):
                    return Side(status=severest.status, predicted=True, why=message)
                case Unsupported(reasons=reasons):
                    return Side(status=severest.status, why="; ".join(reasons))
                case outcome:
                    return Side(status=severest.status, why=getattr(outcome, "message", ""))
        return _measured([record.outcome for record in records if isinstance(record.outcome, Measured)])


def _measured(outcomes: Sequence[Measured]) -> Side:
    def worst(name: str) -> float | None:
        return max((value for outcome in outcomes if (value := getattr(outcome, name)) is not None), default=None)

    def whole(name: str) -> int | None:
        value = worst(name)
        return None if value is None else int(value)

    def condition(name: str) -> int | None:
        told = [outcome.conditions[name] for outcome in outcomes if isinstance(outcome.conditions.get(name), int)]
        return max((int(value) for value in told if value is not None), default=None)

    fidelities = [outcome.fidelity for outcome in outcomes if outcome.fidelity is not None]
    return Side(
        status="measured",
        peak_bytes=whole("peak_bytes"),
        useful_flops=whole("useful_flops"),
        issued_flops=whole("issued_flops"),
        dispatched=tuple(dict.fromkeys(name for outcome in outcomes for name in outcome.dispatched)),
        recompiles=condition("recompiles"),
        graph_breaks=condition("graph_breaks"),
        own_error=worst("own_error"),
        tolerance=worst("tolerance"),
        gradient_error=worst("gradient_error"),
        gradient_tolerance=worst("gradient_tolerance"),
        fidelity=max(fidelities, key=lambda fidelity: fidelity.relative_error or 0.0, default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCell:
    """One case on both sides.

    ``screened``: per pair of fresh processes, the logarithm of head's median seconds over base's. ``confirmed``: the
    same of further pairs, all fresh, for a case that the first ones made suspect; empty otherwise.
    ``noise``: the standard deviation that such a number has for identical code of this case, from an A/A calibration;
    None if that is not known.
    """

    case: Case
    about: About
    base: Side
    head: Side
    screened: tuple[float, ...] = ()
    confirmed: tuple[float, ...] = ()
    noise: float | None = None

    def __post_init__(self) -> None:
        for value in (*self.screened, *self.confirmed, *([] if self.noise is None else [self.noise])):
            if not math.isfinite(value):
                raise NotComparableError(
                    f"{self.case.variant}: expected finite log-ratios of seconds, got {value}; measure that pair again"
                )
        if self.noise is not None and self.noise < 0:
            raise NotComparableError(f"{self.case.variant}: expected a noise of 0 or more, got {self.noise}")

    @property
    def deciding(self) -> tuple[float, ...]:
        """Suspects are decided on their fresh pairs alone: what made them suspect is no second test."""
        return self.confirmed or self.screened


def log_ratio(head_seconds: float, base_seconds: float, case: Case) -> float:
    """The number of one pair, from the median seconds of its two processes.

    Raises:
        NotComparableError: a time that is not positive and finite.

    """
    for seconds in (head_seconds, base_seconds):
        if not (math.isfinite(seconds) and seconds > 0):
            raise NotComparableError(
                f"{case.variant}: expected seconds above 0, got {seconds}; that record is not of a measurement"
            )
    return math.log(head_seconds / base_seconds)
