"""Errors that a person caused or can mend: one line each, with the exit code of the command that meets them."""

from __future__ import annotations


class BenchError(Exception):
    """Ends a command with ``exit_code``. The message says what was expected, what came and what to do."""

    exit_code = 1


class WrongUsageError(BenchError):
    """An option, name or file that cannot be used."""

    exit_code = 2


class NotComparableError(BenchError):
    """Results of another host, settings or schema, or none at all."""

    exit_code = 3
