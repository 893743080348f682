"""Errors that a person caused or can mend: one line each, with the exit code of the command that meets them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BenchError(Exception):
    """Ends a command with ``exit_code``. The message says what was expected, what came and what to do."""

    exit_code = 1


class WrongUsageError(BenchError):
    """An option, name or file that cannot be used."""

    exit_code = 2


class NotComparableError(BenchError):
    """Results of another host, settings or schema, or none at all."""

    exit_code = 3


def unknown(what: str, name: object, known: Iterable[str]) -> WrongUsageError:
    """An error that names what was expected, and the nearest of it."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return WrongUsageError(f"{what} {name!r} is unknown, expected one of {', '.join(names)}{hint}")
