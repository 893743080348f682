"""Texts as tokens of the encoder, in windows of one length. Nothing here imports torch."""

from __future__ import annotations

from functools import cache
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from bench.errors import WrongUsageError
from bench.fidelity import shipped

FIRST, LAST = "[CLS]", "[SEP]"


@cache
def tokenizer() -> Any:
    """WordPiece of the shipped encoder, without padding and truncation."""
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(shipped.encoder_folder() / "tokenizer.json"))
    loaded.no_padding()
    loaded.no_truncation()
    return loaded


@cache
def tokens_of(file: Path | None) -> tuple[int, ...]:
    """A text file's tokens, or those of Python's language reference, without special ones.

    Raises:
        WrongUsageError: the file is no text, or an empty one.

    """
    try:
        text = shipped.python_topics() if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsageError(f"expected a text in UTF-8, cannot read {file}: {error}") from error
    found = tuple(tokenizer().encode(text, add_special_tokens=False).ids)
    if not found:
        raise WrongUsageError(f"expected a text, {file} is empty")
    return found


def windows(tokens: tuple[int, ...], *, length: int, count: int, first: int) -> list[list[int]]:
    """``count`` windows of ``length`` tokens from the ``first``-th on; a text that ends begins again.

    Each starts and ends as the encoder learned it, with special tokens, where it has room for them.
    """
    ends = [tokenizer().token_to_id(name) for name in (FIRST, LAST)] if length > len((FIRST, LAST)) else []
    inner = length - len(ends)
    start = first * inner % len(tokens)
    running = islice(cycle(chain(tokens[start:], tokens[:start])), count * inner)
    return [[*ends[:1], *islice(running, inner), *ends[1:]] for _ in range(count)]


def documents(texts: list[str], length: int) -> list[list[int] | None]:
    """Each text's first ``length`` tokens, special ones included; None for one that has not as many."""
    ends = [tokenizer().token_to_id(name) for name in (FIRST, LAST)]
    encoded = tokenizer().encode_batch(texts, add_special_tokens=False)
    inner = length - len(ends)
    return [[ends[0], *each.ids[:inner], ends[1]] if len(each.ids) >= inner else None for each in encoded]
