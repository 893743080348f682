"""What a team asks of a change: margins, significance, what is advisory, what may vanish and until when.

Shares are written as ``"3%"`` or as 0.03, never as 3, so that none is divided by a hundred twice or not at all.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bench.record import Case

ANY = ("*",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which cases something holds for: patterns as in a shell; each field holds where one of its patterns matches."""

    variant: tuple[str, ...] = ANY
    mask: tuple[str, ...] = ANY
    mode: tuple[str, ...] = ANY

    def __contains__(self, case: object) -> bool:
        return isinstance(case, Case) and all(
            any(fnmatchcase(value, pattern) for pattern in patterns)
            for value, patterns in (
                (case.variant, self.variant),
                (case.workload.mask, self.mask),
                (case.workload.mode, self.mode),
            )
        )

    def __str__(self) -> str:
        named = [("variant", self.variant), ("mask", self.mask), ("mode", self.mode)]
        return " ".join(f"{name}={','.join(patterns)}" for name, patterns in named if patterns != ANY) or "everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """A margin of its own for some cases; of several that match, the last holds."""

    where: Where
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """Cases that are reported and never fail the job, and why."""

    where: Where
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Cases that may be missing from the head up to and including a day, and why."""

    where: Where
    until: dt.date
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Exact gates that may be worse for some cases up to and including a day, and why."""

    where: Where
    gates: tuple[str, ...]
    until: dt.date
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that a verdict depends on besides the data. Shares are fractions: 0.01 is 1%.

    ``margin``: what is no change worth reporting. ``stored_margin``: the same, at least, for runs made at different
    times whose noise from run to run nobody recorded. ``coarse_margin``: for runs of a single process.
    ``significance``: how likely a job with nothing but identical code may fail for the time of any case; that it fails
    for an exponent may be a tenth as likely. ``false_discovery``: the share of the reported changes that may be wrong.
    ``confidence``: of the intervals shown, and of that which must lie inside the margin for ``same``; with 0.9 each of
    its ends errs once in twenty, as in two one-sided tests at 5% (Schuirmann, "A comparison of the two one-sided tests
    procedure and the power approach", 1987). ``decided_share``: of the decidable cells, how many must be decided.
    ``exponent_margin``: by how much an exponent of time may grow.
    """

    margin: float = 0.01
    stored_margin: float = 0.05
    coarse_margin: float = 0.40
    significance: float = 0.01
    false_discovery: float = 0.05
    confidence: float = 0.90
    decided_share: float = 0.80
    exponent_margin: float = 0.02
    margins: Sequence[Margin] = ()
    advisory: Sequence[Advisory] = ()
    removals: Sequence[Removal] = ()
    accepted: Sequence[Accepted] = ()

    def margin_of(self, case: Case) -> float:
        """The margin of a case, as a fraction."""
        return next((rule.margin for rule in reversed(self.margins) if case in rule.where), self.margin)

    def advisory_reason(self, case: Case) -> str | None:
        """Why a case never fails the job, None if it may."""
        return next((rule.reason for rule in self.advisory if case in rule.where), None)

    def removal(self, case: Case) -> Removal | None:
        """The rule that names a case as removed, expired or not; of several the one that lasts longest."""
        return max((rule for rule in self.removals if case in rule.where), key=lambda rule: rule.until, default=None)

    def idle(self, cases: Collection[Case]) -> list[Where]:
        """Where rules apply to none of these cases, as where a name is misspelt."""
        rules: list[Margin | Advisory | Removal | Accepted]
        rules = [*self.margins, *self.advisory, *self.removals, *self.accepted]
        return [rule.where for rule in rules if not any(case in rule.where for case in cases)]

    def acceptance(self, case: Case, gate: str, today: dt.date) -> str | None:
        """Why an exact gate may be worse for a case today, None if it may not."""
        return next(
            (
                rule.reason
                for rule in self.accepted
                if gate in rule.gates and today <= rule.until and case in rule.where
            ),
            None,
        )


DEFAULT = Policy()
