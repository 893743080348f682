"""What a comparison as a whole says: verdicts, exact figures, what cannot be compared, and one exit code."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench import wording
from bench.gate import exact, growth
from bench.gate.decision import Comparison, Decision, Failure, Timed, decide_timed, timings
from bench.gate.exact import Finding
from bench.gate.pairs import PairedCell
from bench.gate.policy import DEFAULT, Policy

FINE, REGRESSION, INCOMPARABLE, INCONCLUSIVE = 0, 1, 3, 4

_BY_TIME = ("faster", "same", "slower", "unclear")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All that was found. ``problems`` make the whole incomparable; ``notes`` are for the reader alone.

    ``base`` and ``head`` name the sides.
    """

    decisions: Sequence[Decision]
    findings: Sequence[Finding]
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    base: str = "base"
    head: str = "head"
    decided_share_wanted: float = DEFAULT.decided_share

    @property
    def decidable(self) -> list[Decision]:
        """Cells with times on both sides that are not advisory."""
        return [one for one in self.decisions if one.verdict in _BY_TIME and not one.advisory]

    @property
    def decided_share(self) -> float | None:
        """Of the decidable cells; None where there are none."""
        decidable = self.decidable
        return sum(one.verdict != "unclear" for one in decidable) / len(decidable) if decidable else None

    @property
    def noisy_share(self) -> float:
        """Of the cells with times, how many are too noisy to be decided, by their calibration."""
        timed_ones = [one for one in self.decisions if one.verdict in _BY_TIME]
        return sum(one.noisy for one in timed_ones) / len(timed_ones) if timed_ones else 0.0

    def failing(self, failure: Failure) -> list[Decision | Finding]:
        """What makes the job fail in this way."""
        found: list[Decision | Finding] = [*self.decisions, *self.findings]
        return [one for one in found if one.fails == failure]

    @property
    def exit_code(self) -> int:
        """3 before 1 before 4 before 0: what cannot be compared says nothing of the rest, and a regression is one."""
        if self.problems or self.failing("incomparable"):
            return INCOMPARABLE
        if self.failing("regression"):
            return REGRESSION
        return INCONCLUSIVE if self._is_inconclusive else FINE

    @property
    def _is_inconclusive(self) -> bool:
        share = self.decided_share
        has_times = any(one.verdict in _BY_TIME for one in self.decisions)
        undecided = has_times and (share is None or share < self.decided_share_wanted)
        return undecided or bool(self.failing("inconclusive"))

    @property
    def counts(self) -> Counter[str]:
        """Cells by verdict."""
        return Counter(one.verdict for one in self.decisions)

    @property
    def headline(self) -> str:
        """One sentence: the outcome and why."""
        regressions = len(self.failing("regression"))
        match self.exit_code:
            case 3:
                count = len(self.problems) + len(self.failing("incomparable"))
                return f"not comparable: {wording.counted(count, 'reason')}"
            case 1:
                return wording.counted(regressions, "regression")
            case 4:
                undecided = sum(one.verdict == "unclear" for one in self.decidable)
                noisy = sum(one.noisy for one in self.decisions)
                return f"inconclusive: {undecided} unclear and {noisy} too noisy of {len(self.decisions)} cells"
            case _:
                return "no regression"


def judge(
    cells: Sequence[PairedCell],
    policy: Policy = DEFAULT,
    *,
    today: dt.date | None = None,
    notes: Sequence[str] = (),
    base: str = "base",
    head: str = "head",
) -> Judgement:
    """Of paired cells, as an interleaved comparison measured them."""
    return judge_timed(timings(cells, policy), policy, today=today, notes=notes, base=base, head=head)


def judge_timed(
    cells: Sequence[tuple[Comparison, Timed]],
    policy: Policy = DEFAULT,
    *,
    today: dt.date | None = None,
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
    base: str = "base",
    head: str = "head",
) -> Judgement:
    """The same for any comparison."""
    found = [*exact.find([cell for cell, _ in cells], policy, today=today), *growth.find(cells, policy, today=today)]
    nothing = [] if any(cell.base.is_measured for cell, _ in cells) else ["base measured nothing"]
    only_head = sum(cell.base.status is None and cell.head.is_measured for cell, _ in cells)
    neither = sum(
        cell.base.status is not None and not (cell.base.is_measured or cell.head.is_measured) for cell, _ in cells
    )
    idle = policy.idle([cell.case for cell, _ in cells])
    left_out = [
        *(f"a rule of the policy applies to no case here: {where}" for where in idle),
        *([f"{wording.counted(only_head, 'case')} only in head: not compared"] if only_head else []),
        *([f"{wording.counted(neither, 'case')} measured on neither side"] if neither else []),
    ]
    return Judgement(
        decisions=decide_timed(cells, policy, today=today),
        findings=found,
        problems=[*problems, *nothing],
        notes=[*notes, *left_out],
        base=base,
        head=head,
        decided_share_wanted=policy.decided_share,
    )
