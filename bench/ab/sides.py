"""A side: where its workers find the variants of a revision, while the harness that measures them is the running one.

Its folder holds two links, ``bench`` to the code that runs here and ``variants`` to that of the revision, or to ours
where the repository has none and gives variant files only. Workers import from there first, and from the work tree
next.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import __version__
from bench.ab.trees import Tree
from bench.errors import WrongUsageError
from bench.sweep.supervisor import ENGINE, HERE, Home

_CODE = Path(__file__).parents[2]
_CONTRACT = Path("variants/_contract.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of those that are compared. ``files``: of variants that are not built in, where they are, by name.

    ``root``: of the work tree, below which ``variant_files`` lie.
    """

    name: str
    home: Home = HERE
    engine: str = ENGINE
    revision: str | None = None
    variant_files: tuple[str, ...] = ()
    root: Path | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)

    def told(self, text: str) -> str:
        """A message with paths as they are in the repository."""
        return text if self.root is None else text.replace(f"{self.root}{os.sep}", "")

    def counterpart(self, file: str, other: Side) -> str:
        """Where a file of the other side is on this one."""
        return str(Path(self.root or "") / other.told(file))


def side_of(tree: Tree, name: str, *, variant_files: Sequence[str], install: bool, engine: str = ENGINE) -> Side:
    """The side of a work tree. ``variant_files`` are relative to it; those that the revision lacks are left out.

    Raises:
        WrongUsageError: a file that is not in the repository, or an installation that fails.

    """
    root = tree.root
    links = tree.folder / "imports"
    links.mkdir()
    for package in {"bench", engine.partition(".")[0]}:  # the engine of a test lies beside our code
        (links / package).symlink_to(_CODE / package)
    (links / "variants").symlink_to((root if has_variants(tree) else _CODE) / "variants")
    folders = [links, *(folder for folder in (root / "src", root) if folder.is_dir())]
    return Side(
        name=name,
        engine=engine,
        revision=tree.revision,
        variant_files=tuple(str(file) for file in _inside(root, variant_files) if file.is_file()),
        root=root,
        home=Home(
            python=str(install_into(tree.folder / "environment", root)) if install else sys.executable,
            folders=tuple(folders),
            # where the command was started is no place to import from
            environment={"PYTHONSAFEPATH": "1"},
            scratch=tree.folder,  # so that it is gone with the tree
        ),
    )


def has_variants(tree: Tree) -> bool:
    """Whether the revision has variants of its own, as this repository does."""
    return (tree.root / _CONTRACT).is_file()


def _inside(root: Path, files: Sequence[str]) -> list[Path]:
    for file in files:
        if not (root / file).resolve().is_relative_to(root.resolve()):
            raise WrongUsageError(f"--variant-file: expected a path inside the repository, such as my.py, got {file!r}")
    return [root / file for file in files]


def install_into(folder: Path, root: Path) -> Path:
    """The Python of a new environment with what the harness needs, and with the package of the work tree.

    Raises:
        WrongUsageError: it cannot be installed; the message ends as pip's does.

    """
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    _run([sys.executable, "-m", "venv", str(folder)], "cannot make an environment")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*install, *harness_requirements()], "cannot install what the harness needs")
    _run([*install, str(root)], f"cannot install {root.name}")
    return python


def harness_requirements() -> list[str]:
    """What must be installed for a worker to run: the requirements of this package, with those for measuring.

    Raises:
        WrongUsageError: this package is not installed, so that nobody knows.

    """
    try:
        requires = importlib.metadata.requires("attention-bench") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise WrongUsageError(
            f"--install: attention-bench {__version__} runs without being installed; install it first"
        ) from error
    parts = [text.partition(";") for text in requires]
    return [
        name.strip() for name, _, marker in parts if "extra" not in marker or 'extra == "torch"' in _spelled(marker)
    ]


def _spelled(marker: str) -> str:
    return marker.replace("'", '"')


def _run(command: Sequence[str], failing: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # pip and venv
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise WrongUsageError(f"--install: {failing}: {said[-1] if said else done.returncode}")
