"""A judgement as a comment on a pull request: the outcome, what changed, and the rest to unfold."""

from __future__ import annotations

from collections.abc import Sequence

from bench import wording
from bench.gate import rows
from bench.gate.decision import Decision
from bench.gate.judgement import Judgement
from bench.report import markdown

MOST_CHARACTERS = 60_000  # GitHub takes 65,536 in a comment
_SIGNS = {0: "✅", 1: "❌", 3: "⛔", 4: "❔"}


def render(judgement: Judgement) -> str:
    """The whole comment; ends with a newline. Without the cells that are the same where they make it too long."""
    whole = _render(judgement, unfold=True)
    return whole if len(whole) <= MOST_CHARACTERS else _render(judgement, unfold=False)


def _render(judgement: Judgement, *, unfold: bool) -> str:
    shown = rows.changed(judgement)
    rest = [one for one in rows.ordered(judgement) if one not in shown]
    parts = [
        f"### {_SIGNS[judgement.exit_code]} attention-bench: {markdown.text(judgement.headline)}",
        f"{markdown.code(judgement.base)} → {markdown.code(judgement.head)}",
        "\n".join(f"- **{markdown.text(problem)}**" for problem in judgement.problems),
        _decisions(shown),
        _findings(judgement),
        markdown.details(f"{wording.counted(len(rest), 'cell')} the same", _decisions(rest)) if rest and unfold else "",
        "\n".join(f"- {markdown.text(line)}" for line in rows.summary(judgement)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _decisions(decisions: Sequence[Decision]) -> str:
    escaped = [[markdown.text(word) for word in rows.decision(one)] for one in decisions]
    return markdown.table(rows.COLUMNS, escaped, left=len(rows.COLUMNS))


def _findings(judgement: Judgement) -> str:
    escaped = [[markdown.text(word) for word in rows.finding(one)] for one in rows.ordered_findings(judgement)]
    return markdown.table(rows.FINDINGS, escaped, left=len(rows.FINDINGS))
