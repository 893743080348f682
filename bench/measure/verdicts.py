"""From what went wrong to the outcome that is recorded: one sentence, without paths, of text that can be stored."""

from __future__ import annotations

import re

from bench.errors import BenchError
from bench.record import Failed, Outcome, OutOfMemory, Stage

_LONGEST_MESSAGE = 400
_PATH = re.compile(r"(?<![\w/])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+([^\s/\\:'\"]+)")
_NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|cannot allocate memory|std::bad_alloc", re.IGNORECASE
)


class Rejection(Exception):  # noqa: N818  # a verdict that ends the measuring of a case, no error of ours
    """Carries the outcome of a case that ends here."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.outcome = outcome


def explain(error: BaseException, stage: Stage) -> Outcome:
    """What an exception makes of its case: out of memory, or failed with its type and message; ours speak alone."""
    own = isinstance(error, BenchError)
    message = _text(error) if own else f"{type(error).__name__}: {_text(error)}".removesuffix(": ")
    if is_out_of_memory(error):
        return OutOfMemory(stage=stage, message=tidy(message))
    return Failed(stage=stage, message=tidy(message))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, the device's, or that of torch's CPU allocator, which raises RuntimeError."""
    match error:
        case MemoryError():
            return True
        case RuntimeError():  # torch.OutOfMemoryError is one
            return _NO_MEMORY.search(_text(error)) is not None
        case _:
            return False


def tidy(message: str) -> str:
    """One line of at most 400 characters; of paths only the last part, since a record travels."""
    line = one_line(_PATH.sub(r"\1", " ".join(message.split())))
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 1]}…"


def one_line(text: str) -> str:
    """Without line breaks, and with escapes for what cannot be printed or, as half a surrogate pair, even written."""
    line = " ".join(text.split())
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # an exception of a variant's own whose text raises
        return ""
