"""A request to terminate is an interruption too: workers end, and the exit code says so."""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Within it, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; what is ignored, as by nohup, stays so."""
    heeded = [number for number in _ENDINGS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def saying(what: Callable[[], str]) -> Iterator[None]:
    """Within it, an interruption says what it leaves behind; ``what`` is asked then, and may have nothing to say."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(what()) from None


def left_behind(file: Path, arguments: Sequence[str], *, checkpoints: Path | None = None) -> str:
    """Where everything is, and the command that goes on with it; nothing where nothing was written."""
    if not file.exists() and not (checkpoints and checkpoints.exists()):
        return ""
    given = {argument.partition("=")[0] for argument in arguments}
    more = [*([] if "--out" in given else ["--out", str(file)]), *([] if "--resume" in given else ["--resume"])]
    command = shlex.join(["python", "-m", "bench", *arguments, *more])
    return f"everything measured so far is in {file}; go on with: {command}"
