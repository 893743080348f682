"""A judgement as rows of words, for a table of any kind. What matters most comes first."""

from __future__ import annotations

from collections.abc import Sequence

from bench import wording
from bench.gate import naming
from bench.gate.decision import Decision, Verdict
from bench.gate.exact import Finding
from bench.gate.judgement import Judgement
from bench.stats import Estimate

COLUMNS = ("verdict", "variant", "mask", "mode", "length", "other", "head / base", "p", "why")
RIGHT = ("length", "head / base", "p")
FINDINGS = ("gate", "case", "base", "head", "")

_ORDER: Sequence[Verdict] = ("missing", "broke", "slower", "unclear", "fixed", "faster", "same")


def ordered(judgement: Judgement) -> list[Decision]:
    """By what it does to the job, then by verdict, then as measured."""
    return sorted(judgement.decisions, key=lambda one: (one.fails is None, one.advisory, _ORDER.index(one.verdict)))


def changed(judgement: Judgement) -> list[Decision]:
    """Those that are not simply the same."""
    return [one for one in ordered(judgement) if one.verdict != "same" or one.fails is not None]


def decision(one: Decision) -> tuple[str, ...]:
    """The words of one row under :data:`COLUMNS`."""
    workload = one.case.workload
    return (
        verdict(one),
        naming.contender(one.case),
        workload.mask,
        workload.mode,
        naming.length(one.case),
        naming.rest(one.case),
        "" if one.ratio is None else ratio(one.ratio),
        "" if one.p is None else probability(one.p),
        one.why,
    )


def verdict(one: Decision) -> str:
    """With a mark where it fails the job, and where it cannot."""
    mark = {"regression": " ✗", "incomparable": " ✗", "inconclusive": " ?"}.get(one.fails or "", "")
    return f"{one.verdict}{mark}" + (" (advisory)" if one.advisory else "")


def finding(one: Finding) -> tuple[str, ...]:
    """The words of one row under :data:`FINDINGS`."""
    said = {"regression": "worse ✗", "incomparable": "not comparable ✗"}.get(one.fails or "", "better or harmless")
    lengths = " and shorter" if one.series else ""
    return one.gate, naming.named(one.case) + lengths, one.base, one.head, one.note or said


def ordered_findings(judgement: Judgement) -> list[Finding]:
    """Those that fail the job first."""
    return sorted(judgement.findings, key=lambda one: one.fails is None)


def ratio(estimate: Estimate) -> str:
    """1.006× [1.004, 1.008]: near one, thousandths are what is asked for."""
    if estimate.low is None or estimate.high is None:
        return f"{_times(estimate.value)}× ±?"
    return f"{_times(estimate.value)}× [{_times(estimate.low)}, {_times(estimate.high)}]"


def _times(value: float) -> str:
    return wording.number(value, 4 if value >= 1 else 3) if abs(value - 1) < 0.5 else wording.number(value)  # noqa: PLR2004  # half


def probability(value: float) -> str:
    """0.012; <0.0001."""
    return "<0.0001" if value < 1e-4 else wording.number(value, 2)  # noqa: PLR2004  # as it says


def summary(judgement: Judgement) -> list[str]:
    """The lines under a table: how many of what, how many could be decided."""
    counts = ", ".join(f"{judgement.counts[name]} {name}" for name in _ORDER if judgement.counts[name])
    share = judgement.decided_share
    lines = [f"cells: {counts or 'none'}"]
    if share is not None:
        lines.append(
            f"decided: {wording.percent(share)} of {wording.counted(len(judgement.decidable), 'decidable cell')}"
        )
    if judgement.noisy_share:
        lines.append(f"too noisy to be decided, by calibration: {wording.percent(judgement.noisy_share)} of cells")
    return [*lines, *judgement.notes]
