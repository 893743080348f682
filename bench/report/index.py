"""A page over all reports of a folder: what each is about, its first picture and its headlines.

Every report leaves a card, ``report.json``, of what such a page says of it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from bench.errors import NotComparableError, WrongUsageError
from bench.report import markdown

CARD = "report.json"
MARKER = "<!-- attention-bench index of reports -->"
README = "README.md"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """``thumbnail`` is the name of a picture without its ending, None where there is none; all words are Markdown."""

    title: str
    summary: str
    headlines: list[str]
    thumbnail: str | None


def encode(card: Card) -> bytes:
    """The card as a file."""
    return msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n"


def write(folder: Path) -> Path:
    """Write ``README.md`` over all reports right below ``folder``, by name; returns its path.

    Raises:
        NotComparableError: no report there.
        WrongUsageError: its README.md is of another kind, a card is damaged, or it cannot be written.

    """
    readme = folder / README
    cards = {path.parent.name: _read(path) for path in sorted(folder.glob(f"*/{CARD}"))}
    if not cards:
        raise NotComparableError(f"expected reports below {folder}, found none: write one with 'report FILES --out'")
    try:
        if readme.exists() and MARKER.encode() not in readme.read_bytes():
            raise WrongUsageError(f"expected a folder of reports, {readme} is something else: give another --index")
        with tempfile.TemporaryDirectory(prefix=".index-", dir=folder) as beside:  # so that a full disk costs nothing
            whole = Path(beside) / README
            whole.write_bytes(_page(cards).encode())
            whole.replace(readme)
    except OSError as error:
        raise WrongUsageError(
            f"expected a folder that can be written, cannot write {readme}: {error.strerror}"
        ) from error
    return readme


def _read(path: Path) -> Card:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Card)
    except (OSError, msgspec.DecodeError) as error:
        raise WrongUsageError(f"expected the card of a report, cannot read {path}: {error}; write it anew") from error


def _page(cards: dict[str, Card]) -> str:
    parts = [MARKER + "\n# Reports"]
    for name, card in cards.items():
        parts += [f"## [{markdown.text(name)}: {card.title}]({name}/{README})", card.summary]
        if card.thumbnail is not None:
            parts.append(markdown.picture(f"{name}/{card.thumbnail}", card.title, to=f"{name}/{README}", width=480))
        parts += ["\n".join(f"- {headline}" for headline in card.headlines)] if card.headlines else []
    return "\n\n".join(parts) + "\n"
