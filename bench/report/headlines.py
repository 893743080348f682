"""The answer of a workload in one sentence: what to use at which lengths, and what it gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench import wording
from bench.cells import Cell, Contender
from bench.report import markdown
from bench.report.answer import Answer, stretches
from bench.stats import Estimate

_MOST_TIED = 3


def headline(found: Sequence[Answer], speedups: Mapping[Cell, Estimate], over: str | None) -> str:
    """Of the answers for one mask and mode, by length."""
    return f"{_exact(found, speedups, over)}; {_approximate(found)}."


def _exact(found: Sequence[Answer], speedups: Mapping[Cell, Estimate], over: str | None) -> str:
    picks = {answer.length: answer.exact for answer in found}
    best = stretches(picks)
    if not best:
        return "no exact attention was measured"
    lengths = [answer.length for answer in found]
    told = ", ".join(f"{_names(stretch.contenders)} {_at(stretch.lengths, lengths)}" for stretch in best)
    last = max(length for length, pick in picks.items() if pick is not None)
    pick = picks[last]
    assert pick is not None  # noqa: S101  # chosen for it
    faster = speedups.get(pick.cell)
    gain = ""
    if over is not None and faster is not None and pick.cell.contender.label != over:
        gain = f", {wording.factor(faster.value)} the speed of {markdown.code(over)}"
    which = f"{markdown.code(pick.cell.contender.label)} " if len(best[-1].contenders) > 1 else ""
    return f"exact: {told} (at {wording.length(last)}: {which}{wording.duration(pick.seconds.value)}{gain})"


def _approximate(found: Sequence[Answer]) -> str:
    if all(answer.approximate is None for answer in found):
        return "no approximate attention was measured"
    paying = {answer.length: answer.approximate for answer in found if answer.approximation_pays}
    if not paying:
        return "no approximate one is faster at these lengths"
    best = stretches(paying)
    lengths = [answer.length for answer in found]
    told = ", ".join(f"{_names(stretch.contenders)} {_at(stretch.lengths, lengths)}" for stretch in best)
    last = max((answer for answer in found if answer.approximation_pays), key=lambda answer: answer.length)
    return f"approximate: {told} ({_gain(last)})"


def _gain(answer: Answer) -> str:
    assert answer.approximate is not None  # noqa: S101  # chosen for it
    told = [f"{wording.factor(answer.gain.value)} faster than exact"] if answer.gain else []
    error = answer.approximate.cell.relative_error
    told.append("fidelity not measured" if error is None else f"relative error {wording.error(error)}")
    if answer.no_better_than_floor:
        told.append("no closer than the plain mean of the values")
    return f"at {wording.length(answer.length)}: {', '.join(told)}"


def _names(contenders: Sequence[Contender]) -> str:
    names = [markdown.code(contender.label) for contender in contenders[:_MOST_TIED]]
    if len(contenders) > _MOST_TIED:
        return f"{', '.join(names)} or {len(contenders) - _MOST_TIED} more"
    return wording.listed(names, "or")


def _at(some: Sequence[int], every: Sequence[int]) -> str:
    """Which of all lengths: at every length, up to 1k, from 2k on, or their names."""
    if len(every) == 1:
        return f"at {wording.length(every[0])}"
    if list(some) == list(every):
        return "at every length"
    if list(some) == list(every)[: len(some)]:
        return f"up to {wording.length(some[-1])}" if len(some) > 1 else f"at {wording.length(some[0])}"
    if list(some) == list(every)[-len(some) :]:
        return f"from {wording.length(some[0])} on" if len(some) > 1 else f"at {wording.length(some[0])}"
    return f"at {wording.listed([wording.length(length) for length in some])}"
