"""Removes work trees when whoever made them has ended, however that was: ``python guardian.py REPOSITORY FOLDER``.

It waits for the end of its standard input, which the system closes even for a process that is killed. It imports
nothing of ours, so that it starts at once and needs no path.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PATIENCE_SECONDS, _TICK_SECONDS = 30.0, 0.01


def clean(repository: str, folder: Path) -> None:
    """Remove the folder and everything in it, and let git forget the work trees there."""
    for tree in folder.glob("*/tree"):
        _git(repository, "worktree", "remove", "--force", "--force", str(tree))
    deadline = time.monotonic() + _PATIENCE_SECONDS  # a worker that is being killed may still write there
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_TICK_SECONDS)
    _git(repository, "worktree", "prune")


def _git(repository: str, *arguments: str) -> None:
    subprocess.run(  # noqa: S603  # fixed arguments
        ["git", "-C", repository, *arguments],  # noqa: S607  # whichever git there is
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    clean(sys.argv[1], Path(sys.argv[2]))
