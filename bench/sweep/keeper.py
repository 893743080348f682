"""Stands between a sweep and one of its workers, so that all that the worker started ends with either of them.

``python keeper.py SWEEP FOLDER COMMAND…`` runs a command, as a process in a session of its own, and sleeps. Orphans of
the command's children become children of the keeper, wherever they have gone: the system sees to that. When
the command has ended, or the sweep has, be it by SIGKILL, it kills them all, and ends as the command did. If the sweep
has died, it removes FOLDER too. ``KEEPER`` in the command stands for the keeper's own process id.

Linux only: nowhere else can a process ask for orphans, and be told of its parent's death.
Nothing but the standard library is imported, as there is a keeper for each worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Never

KEEPER = "KEEPER"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_EXITING = 0x4  # the kernel's PF_EXITING
_HEEDED = {signal.SIGCHLD, signal.SIGTERM}
_PATIENCE_SECONDS = 5.0
_TICK_SECONDS = 0.002
_MOST_DESCRIPTORS = 1 << 16


def keep(sweep: int, folder: str, command: list[str]) -> Never:
    """Run the command until it ends, we are asked to end, or ``sweep``, our parent, dies."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != sweep:  # it died before we could ask to be told
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)
    worker = _start([str(os.getpid()) if word == KEEPER else word for word in command], before)
    os.closerange(3, _MOST_DESCRIPTORS)  # lest a pipe of the worker's stay open when it is gone
    status = None
    while status is None and signal.sigwait(_HEEDED) == signal.SIGCHLD:
        status = _reaped(worker)
    _end_all()
    if _is_ending(sweep):
        shutil.rmtree(folder, ignore_errors=True)
    _end_like(os.waitstatus_to_exitcode(status) if status is not None else 1)


def _start(command: list[str], unblocked: Collection[int]) -> int:
    """A child in a session of its own: what is sent to its whole group does not reach us."""
    process = os.fork()
    if process:
        return process
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited
        os.execv(command[0], command)  # noqa: S606  # the sweep's own command
    finally:
        os._exit(127)


def _is_ending(sweep: int) -> bool:
    """Whether our parent has died, or is about to: it loses its files, and so its worker, before its children."""
    if os.getppid() != sweep:
        return True
    with contextlib.suppress(OSError, ValueError):
        flags = int(Path(f"/proc/{sweep}/stat").read_bytes().rpartition(b")")[2].split()[6])
        return bool(flags & _EXITING)
    return True


def _reaped(worker: int) -> int | None:
    """Bury all children that have ended; how the worker did, if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            found = ended[1] if ended[0] == worker else found
    return found


def _end_all() -> None:
    """Kill every descendant, and those that they leave to us, until there is none."""
    deadline = time.monotonic() + _PATIENCE_SECONDS  # one may be held up in the kernel
    while time.monotonic() < deadline:
        for process in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(_TICK_SECONDS)


def descendants(ancestor: int) -> list[int]:
    """Children of a process, their children, and so on."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has gone
                # a name may hold anything: what is told of the process follows its last parenthesis
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found = list(children.get(ancestor, []))
    for process in found:  # grows as it goes
        found += children.get(process, [])
    return found


def _end_like(code: int) -> Never:
    """With this exit code, or by this signal where it is negative."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    keep(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
