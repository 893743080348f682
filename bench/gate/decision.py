"""From what both sides measured to verdicts. Pure functions of data and policy.

The unit is a pair of fresh processes, since samples of one process are not independent. A case is *slower* only if the
lower bound of its ratio clears the margin, which is the policy's or what identical code differs by, whichever is
larger; *same* only if the whole interval lies inside it; and what is neither is *unclear*, not the same. With two
stages, what few pairs made suspect is decided on fresh pairs alone, so that the tests that are made are chosen by other
data than they are made on, and Holm has to allow for the suspects only.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from bench import wording
from bench.errors import WrongUsageError
from bench.gate.inference import Mean, benjamini_hochberg, fewest_pairs, holm, trimmed_mean
from bench.gate.pairs import PairedCell, Side
from bench.gate.policy import DEFAULT, Policy, Removal
from bench.record import About, Case
from bench.stats import Estimate

Verdict = Literal["faster", "same", "slower", "unclear", "missing", "broke", "fixed"]
Failure = Literal["regression", "incomparable", "inconclusive"]

Tested = Literal["slower", "faster", "either", "nothing"]

COARSE = "coarse"
# What identical code stays within in 95 of 100 comparisons, in standard errors.
OWN_NOISE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is said of one case.

    ``ratio``: head's time over base's with the policy's interval; ``p``: of the test for slower or faster, adjusted
    for all that were made, None where none was; ``margin``: what had to be cleared, a fraction; ``units``: of how many
    pairs (of stored runs: processes). ``fails``: what it does to the job: a regression (exit 1), something that cannot
    be compared (3), or that should have been decided and was not (4). ``advisory``: it may not fail the job, by the
    policy, or because the case is ``noisy``: identical code differs by more than the margin, and it is not slower by
    more than even that. ``coarse``: decided by the fixed margin for runs that cannot be tested.
    """

    case: Case
    about: About
    verdict: Verdict
    why: str
    ratio: Estimate | None = None
    p: float | None = None
    margin: float | None = None
    units: int = 0
    fails: Failure | None = None
    advisory: bool = False
    noisy: bool = False
    coarse: bool = False


class Comparison(Protocol):
    """What a verdict needs to know of a case besides its time."""

    @property
    def case(self) -> Case: ...
    @property
    def about(self) -> About: ...
    @property
    def base(self) -> Side: ...
    @property
    def head(self) -> Side: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The time of a case on both sides, as a mean of log-ratios; ``mean`` None where there are too few for one.

    ``margin`` (a fraction) is what it has to clear; ``noisy``: identical code differs by more than the policy's margin.
    ``tested``: what it may be found to be by a test. ``coarse``: the log-ratio to hold against the policy's coarse
    margin where no test decides. ``lacking``: why what should be decided cannot be.
    """

    mean: Mean | None
    units: int
    margin: float
    noisy: bool = False
    tested: Tested = "either"
    coarse: float | None = None
    lacking: str = ""

    @property
    def log_margin(self) -> float:
        return math.log1p(self.margin)


# --- pairs ----------------------------------------------------------------------------------------------------


def suspects(cells: Sequence[PairedCell], policy: Policy = DEFAULT) -> list[PairedCell]:
    """The cells to measure again with fresh pairs: those whose screened mean is beyond their margin, either way.

    A case that is slower by much more than its margin is hardly missed by this, and few others are chosen.
    """
    return [cell for cell in cells if _is_suspect(cell, policy)]


def _is_suspect(cell: PairedCell, policy: Policy) -> bool:
    if not (cell.base.is_measured and cell.head.is_measured):
        return False
    mean = trimmed_mean(cell.screened)
    return mean is not None and abs(mean.value) > math.log1p(policy.margin_of(cell.case))


def check_pairs(pairs: int, hypotheses: int, policy: Policy = DEFAULT) -> None:
    """Whether so many pairs can show at all, at the policy's significance, that one of so many cases is slower.

    Raises:
        WrongUsageError: they cannot; the message names how many could.

    """
    needed = fewest_pairs(hypotheses, policy.significance)
    if pairs < needed:
        raise WrongUsageError(
            f"{wording.counted(pairs, 'pair')} cannot show that {one_of(hypotheses)} is slower at significance "
            f"{policy.significance:g}: expected {needed} pairs at least"
        )


def one_of(cases: int) -> str:
    """What is looked for among so many cases: a case, or one of 40 cases."""
    return "a case" if cases == 1 else f"one of {wording.counted(cases, 'case')}"


def own_noise(noise: float | None, pairs: int) -> float:
    """What a mean of so many pairs of identical code stays within, as a fraction; 0 where no calibration tells."""
    return math.expm1(OWN_NOISE * noise / math.sqrt(pairs)) if noise is not None and pairs else 0.0


def timed(cell: PairedCell, policy: Policy = DEFAULT, *, hypotheses: int = 1) -> Timed:
    """The time of a paired cell, of which ``hypotheses`` are tested together."""
    values = cell.deciding
    wanted, own = policy.margin_of(cell.case), own_noise(cell.noise, len(values))
    needed = fewest_pairs(hypotheses, policy.significance)
    lacking = ""
    if cell.confirmed and len(values) < needed:
        lacking = f"{wording.counted(len(values), 'fresh pair')} where {needed} are needed"
    elif not cell.confirmed and _is_suspect(cell, policy):
        lacking = "suspect, and not measured again with fresh pairs"
    return Timed(
        mean=trimmed_mean(values),
        units=len(values),
        margin=max(wanted, own),
        noisy=own > wanted,
        tested=_tested(cell) if cell.confirmed and not lacking else "nothing",
        lacking=lacking,
    )


def _tested(cell: PairedCell) -> Tested:
    """What the first pairs made likely: who was chosen as maybe slower needs no allowance for those maybe faster."""
    mean = trimmed_mean(cell.screened)
    if mean is None:
        return "either"
    return "slower" if mean.value > 0 else "faster"


def timings(cells: Sequence[PairedCell], policy: Policy = DEFAULT) -> list[tuple[Comparison, Timed]]:
    """Each cell with its time, as :func:`decide_timed` takes them."""
    hypotheses = sum(bool(cell.confirmed) and cell.base.is_measured and cell.head.is_measured for cell in cells)
    return [(cell, timed(cell, policy, hypotheses=hypotheses)) for cell in cells]


def decide(cells: Sequence[PairedCell], policy: Policy = DEFAULT, *, today: dt.date | None = None) -> list[Decision]:
    """A verdict for each cell that can have one, in their order.

    Tested is what has confirmed pairs, for what its screened ones hint at; suspects without them are unclear. Left out
    are cells that only head has, that neither side measured, or that base did not try because its memory was predicted
    not to suffice.
    """
    return decide_timed(timings(cells, policy), policy, today=today)


# --- verdicts -------------------------------------------------------------------------------------------------


def decide_timed(
    cells: Sequence[tuple[Comparison, Timed]], policy: Policy = DEFAULT, *, today: dt.date | None = None
) -> list[Decision]:
    """The same for any comparison: by status, or else by the time of what both sides measured."""
    today = today or dt.datetime.now(tz=dt.UTC).date()
    timings = {
        index: time for index, (cell, time) in enumerate(cells) if cell.base.is_measured and cell.head.is_measured
    }
    tests = _tests(timings)
    decisions: list[Decision | None] = [
        _by_time(cell, time, tests.get(index), policy) if index in timings else _by_status(cell, policy, today)
        for index, (cell, time) in enumerate(cells)
    ]
    return [decision for decision in decisions if decision is not None]


@dataclass(frozen=True, slots=True)
class _Test:
    """Adjusted p values of one cell: Holm's for slower, Benjamini and Hochberg's for slower and for faster."""

    slower_job: float
    slower: float
    faster: float


def _tests(timings: Mapping[int, Timed]) -> dict[int, _Test]:
    """Tests for slower are one family and tests for faster another: a cell is in that which its direction names."""
    able = {index: (time.mean, time) for index, time in timings.items() if time.mean is not None}
    above = {
        index: mean.p_above(time.log_margin)
        for index, (mean, time) in able.items()
        if time.tested in ("slower", "either")
    }
    below = {
        index: mean.p_below(-time.log_margin)
        for index, (mean, time) in able.items()
        if time.tested in ("faster", "either")
    }
    job = dict(zip(above, holm([*above.values()]), strict=True))
    slower = dict(zip(above, benjamini_hochberg([*above.values()]), strict=True))
    faster = dict(zip(below, benjamini_hochberg([*below.values()]), strict=True))
    return {
        index: _Test(job.get(index, 1.0), slower.get(index, 1.0), faster.get(index, 1.0))
        for index in {**above, **below}
    }


def _by_time(cell: Comparison, time: Timed, test: _Test | None, policy: Policy) -> Decision:
    verdict, p, why, certain = _verdict(time, test, policy)
    coarse = why.startswith(COARSE)
    excused = policy.advisory_reason(cell.case)
    noisy = time.noisy and verdict != "slower"
    fails: Failure | None = None
    if verdict == "slower" and certain:
        fails = "regression"
    elif time.lacking and not time.noisy:
        fails = "inconclusive"
    if noisy:
        why += f"; identical code differs by {wording.percent(time.margin)} here"
    if excused is not None:
        why += f"; advisory: {excused}"
    return Decision(
        case=cell.case,
        about=cell.about,
        verdict=verdict,
        why=why,
        ratio=_ratio(time, policy),
        p=p,
        margin=policy.coarse_margin if coarse else time.margin,
        units=time.units,
        fails=None if excused is not None else fails,
        advisory=noisy or excused is not None,
        noisy=noisy,
        coarse=coarse,
    )


def _verdict(time: Timed, test: _Test | None, policy: Policy) -> tuple[Verdict, float | None, str, bool]:  # noqa: PLR0911  # a verdict each
    """Verdict, adjusted p, reason, and whether it is certain enough to fail the job."""
    margin = wording.percent(time.margin)
    if test is not None and test.slower_job <= policy.significance:
        return "slower", test.slower_job, f"slower by more than {margin}", True
    if test is not None and test.slower <= policy.false_discovery:
        why = f"slower by more than {margin}, but not certain enough to fail the job"
        return "slower", test.slower_job, why, False
    if test is not None and test.faster <= policy.false_discovery:
        return "faster", test.faster, f"faster by more than {margin}", False
    decidable = not time.lacking and not time.noisy  # within what identical code differs by is not the same
    if time.mean is not None and decidable and _inside(time.mean, time.log_margin, policy.confidence):
        return "same", None, f"within {margin}", False
    if time.coarse is not None and (time.mean is None or abs(time.coarse) > math.log1p(policy.coarse_margin)):
        return _coarsely(time.coarse, policy.coarse_margin)
    if time.lacking:
        return "unclear", None, time.lacking, False
    if time.mean is None:
        return "unclear", None, f"{wording.counted(time.units, 'pair')} cannot tell", False
    p = None if test is None else test.slower_job if time.mean.value > 0 else test.faster
    return "unclear", p, f"neither within {margin} nor beyond it", False


def _coarsely(log_ratio: float, margin: float) -> tuple[Verdict, None, str, bool]:
    said = wording.percent(margin)
    if log_ratio > math.log1p(margin):
        return "slower", None, f"{COARSE}: slower by more than {said}", True
    if log_ratio < -math.log1p(margin):
        return "faster", None, f"{COARSE}: faster by more than {said}", False
    return "same", None, f"{COARSE}: within {said}", False


def _inside(mean: Mean, log_margin: float, confidence: float) -> bool:
    low, high = mean.interval(confidence)
    return -log_margin < low and high < log_margin


def _ratio(time: Timed, policy: Policy) -> Estimate | None:
    if time.mean is not None:
        low, high = time.mean.interval(policy.confidence)
        return Estimate(math.exp(time.mean.value), math.exp(low), math.exp(high))
    return None if time.coarse is None else Estimate(math.exp(time.coarse))


# --- status ---------------------------------------------------------------------------------------------------

# What a variant that said it could not do a case may not come to instead.
_WORSE_THAN_UNSUPPORTED = ("incorrect", "fell_back", "failed", "crashed")


def _by_status(cell: Comparison, policy: Policy, today: dt.date) -> Decision | None:
    """The verdict of a cell that is not measured on both sides; None where there is nothing to compare."""
    found = _status_verdict(cell, policy, today)
    if found is None:
        return None
    verdict, why, fails = found
    excused = policy.advisory_reason(cell.case)
    return Decision(
        case=cell.case,
        about=cell.about,
        verdict=verdict,
        why=why if excused is None else f"{why}; advisory: {excused}",
        fails=fails if excused is None else None,
        advisory=excused is not None,
    )


def _status_verdict(cell: Comparison, policy: Policy, today: dt.date) -> tuple[Verdict, str, Failure | None] | None:
    base, head = cell.base, cell.head
    change = f"{_said(base)} → {_said(head)}" + (f": {head.why}" if head.why else "")
    if base.status is None:
        return ("broke", change, "regression") if head.status == "incorrect" else None
    if head.status is None:
        return _removed(policy.removal(cell.case), _said(base), today)
    if head.status == "incorrect":
        return "broke", change, "regression"
    if head.predicted:
        return ("missing", change, "incomparable") if base.is_measured else None
    if base.is_measured or (base.status == "unsupported" and head.status in _WORSE_THAN_UNSUPPORTED):
        return "broke", change, "regression"
    return ("fixed", change, None) if head.is_measured and not base.predicted else None


def _removed(rule: Removal | None, base: str, today: dt.date) -> tuple[Verdict, str, Failure | None]:
    if rule is None:
        return "missing", f"{base} → not there", "incomparable"
    if rule.until < today:
        return "missing", f"{base} → not there; its removal was allowed until {rule.until} only", "incomparable"
    return "missing", f"removal allowed until {rule.until}: {rule.reason}", None


def _said(side: Side) -> str:
    if side.status is None:
        return "not there"
    return "predicted to run out of memory" if side.predicted else side.status.replace("_", " ")
