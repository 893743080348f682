"""A request to terminate is an interruption too: workers end, and the exit code says so."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

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
