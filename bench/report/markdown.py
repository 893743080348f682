"""Markdown as code hosts read it (GitHub's), from words that may hold anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"([\\`*_{}\[\]<>~$&#])")


def text(words: str) -> str:
    """Words that show just as they are, on one line."""
    return _MARKUP.sub(r"\\\1", " ".join(words.split()))


def code(words: str) -> str:
    """A name in code style."""
    flat = " ".join(words.split())
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", flat)), default=0))
    pad = " " if "`" in flat else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table whose first ``left`` columns are aligned left and the others right; nothing at all without rows."""
    lines = [_row(row) for row in rows]
    if not lines:
        return ""
    alignment = ["---"] * left + ["---:"] * (len(header) - left)
    return "\n".join([_row(header), _row(alignment), *lines])


def _row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def details(summary: str, body: str) -> str:
    """Something to unfold; ``summary`` is plain words."""
    return f"<details>\n<summary>{html(summary)}</summary>\n\n{body}\n\n</details>"


def picture(name: str, alt: str, *, to: str | None = None, width: int | None = None) -> str:
    """``name.svg``, ``name-dark.svg`` on a dark page, as a link to ``name.png`` or elsewhere; ``width`` in pixels."""
    described = html(" ".join(alt.split())).replace('"', "&quot;")
    wide = f' width="{width}"' if width else ""
    return (
        f'<a href="{to or f"{name}.png"}"><picture>\n'
        f'  <source media="(prefers-color-scheme: dark)" srcset="{name}-dark.svg">\n'
        f'  <img alt="{described}"{wide} src="{name}.svg">\n'
        "</picture></a>"
    )


def html(words: str) -> str:
    """Words inside a tag."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def console(commands: Iterable[str]) -> str:
    """Commands to be copied."""
    lines = "\n".join(commands)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", lines)), default=0))
    return f"{fence}console\n{lines}\n{fence}"
