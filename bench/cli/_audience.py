"""Whoever reads what a command prints may leave before it ends, and that is no reason to end."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import IO, Any, cast

_GONE = (errno.EPIPE, errno.EIO)  # a pipe that nobody reads, a terminal that was closed


@contextlib.contextmanager
def may_leave() -> Iterator[None]:
    """Within it, what is printed to a closed pipe or terminal is dropped, so that a command ends with its own code.

    Else `gate … | head -1` would pass, or not, by how much it has to say, and a sweep would end when its log does.
    """
    with contextlib.ExitStack() as stack:
        for redirect, stream in (
            (contextlib.redirect_stdout, sys.stdout),
            (contextlib.redirect_stderr, sys.stderr),
        ):
            if stream is not None:  # it was closed from the beginning
                stack.enter_context(redirect(cast("IO[str]", _Stream(stream))))
        yield


class _Stream:
    """A text stream that is sent to nowhere when nobody reads it any more."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _GONE:
                raise
            _send_to_nowhere(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _send_to_nowhere(stream: IO[str]) -> None:
    """For good, and with what the stream still holds, which would else fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)
