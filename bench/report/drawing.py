"""Pictures as files, drawn on several cores: of most reports, drawing takes longer than all else.

A process is forked for a share of the pictures: it knows all that they are drawn from, and gives back their bytes. What
it does not give back, for whatever reason, is drawn here, so that errors are met where they always were.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from bench.report.gallery import PictureFile

_MOST = 4  # processes, this one among them; a report has some fifteen pictures
_CAN_FORK = sys.platform == "linux"  # elsewhere system libraries may not survive it

Files = dict[str, bytes]


def files(pictures: Sequence[PictureFile]) -> Files:
    """The files of all pictures, by name."""
    count = max(1, min(_MOST, len(pictures), _cores()))
    own, *shares = (pictures[start::count] for start in range(count))
    with contextlib.ExitStack() as stack:
        others = [(share, stack.enter_context(_asked(share))) for share in shares]
        found = _drawn(own)
        for share, answer in others:
            try:
                found |= answer.recv()
            except (EOFError, OSError):  # nothing, or half of it
                found |= _drawn(share)
    return found


def _cores() -> int:
    """How many this process may use and share its memory with."""
    return len(os.sched_getaffinity(0)) if _CAN_FORK else 1


def _drawn(pictures: Sequence[PictureFile]) -> Files:
    return {name: content for picture in pictures for name, content in picture.files.items()}


@contextlib.contextmanager
def _asked(pictures: Sequence[PictureFile]) -> Iterator[Connection]:
    """Where the files of a share will come from. Its process ends with the context."""
    fork = multiprocessing.get_context("fork")
    answer, answering = fork.Pipe(duplex=False)
    process = fork.Process(target=_answer, args=(pictures, answer, answering), daemon=True)
    with answer:
        with answering, warnings.catch_warnings():
            # the threads that Python warns of are numpy's, which wait for work and hold nothing
            warnings.simplefilter("ignore", DeprecationWarning)
            with contextlib.suppress(OSError):  # there is no room for another
                process.start()
        try:
            yield answer
        finally:
            if process.pid is not None:
                process.kill()
                process.join()


def _answer(pictures: Sequence[PictureFile], answer: Connection, answering: Connection) -> None:
    """In the other process: silent, whatever happens."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    answer.close()  # so that nobody listens where the one who asked is gone
    gc.freeze()  # looking through what is shared would copy it
    with contextlib.suppress(Exception):
        answering.send(_drawn(pictures))
