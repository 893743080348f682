"""Revisions of a repository in git work trees of their own, which are gone afterwards, whatever happens."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.ab import guardian
from bench.errors import WrongUsageError

_GUARDIAN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Tree:
    """A revision on disk. ``name`` is what was asked for, ``revision`` the commit; ``folder`` is free for us to use."""

    name: str
    revision: str
    root: Path
    folder: Path


@contextlib.contextmanager
def checked_out(repository: Path, *names: str) -> Iterator[list[Tree]]:
    """A work tree for each revision, in order. Removed at the end by a process that outlives this one.

    Raises:
        WrongUsageError: it is no repository, or has no such revision.

    """
    top = Path(_git(repository, "rev-parse", "--show-toplevel", otherwise=f"expected a git repository in {repository}"))
    revisions = [revision_of(top, name) for name in names]
    folder = Path(tempfile.mkdtemp(prefix="attention-bench-ab-"))
    with _guarded(top, folder):
        yield [
            _check_out(top, name, revision, folder / str(number))
            for number, (name, revision) in enumerate(zip(names, revisions, strict=True))
        ]


def revision_of(repository: Path, name: str) -> str:
    """The commit that a name stands for.

    Raises:
        WrongUsageError: it stands for none.

    """
    return _git(
        repository,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{name}^{{commit}}",
        otherwise=f"expected a revision of {repository}, got {name!r}; fetch it, or give another name or commit",
    )


def _check_out(repository: Path, name: str, revision: str, folder: Path) -> Tree:
    folder.mkdir()
    root = folder / "tree"
    _git(
        repository,
        "-c",
        "core.hooksPath=/dev/null",  # nobody asked for the repository's hooks
        "worktree",
        "add",
        "--detach",
        str(root),
        revision,
        otherwise=f"cannot check out {name}",
    )
    return Tree(name, revision, root, folder)


@contextlib.contextmanager
def _guarded(repository: Path, folder: Path) -> Iterator[None]:
    """Within it, a process waits for us to end or to let go, and cleans then."""
    command = [sys.executable, "-I", guardian.__file__, str(repository), str(folder)]
    process = subprocess.Popen(  # noqa: S603  # our own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None  # noqa: S101  # as asked for
    assert process.stdout is not None  # noqa: S101
    try:
        process.stdout.readline()
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(_GUARDIAN_SECONDS)


def _git(folder: Path, *arguments: str, otherwise: str) -> str:
    """What git says.

    Raises:
        WrongUsageError: ``otherwise``, with git's own last line.

    """
    try:
        done = subprocess.run(  # noqa: S603  # a revision cannot become an option, see `--end-of-options`
            ["git", "-C", str(folder), *arguments],  # noqa: S607  # whichever git there is
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise WrongUsageError(f"{otherwise}; git cannot be run: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise WrongUsageError(f"{otherwise}{f' (git: {said[-1]})' if said else ''}")
    return done.stdout.strip()
