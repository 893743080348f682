"""Where query, key and value come from: the grammar of ``--inputs``, and files named by what they hold.

=============================  =====================================================================================
``normal``                     standard normal numbers
``minilm``                     a shipped sentence encoder's, its heads spread over all layers
``minilm:LAYER``               those of one layer, counted from 0
``minilm:stretched``           its positions interpolated beyond the 512 that it has, as in ``minilm:3:stretched``;
                               without it, longer sequences are windows of 512 that were encoded apart
``matched``, ``matched:LAYER`` normal numbers with the mean and covariance of ``minilm``, head by head
``file:PATH.safetensors``      your own ``query``, ``key`` and ``value``; see :mod:`bench.fidelity.recording`
=============================  =====================================================================================

``minilm`` and ``matched`` read a text that ships with Python, or another: ``minilm:3@notes.txt``. A file's place is no
part of a case, what it holds is: ``file:layer3.safetensors`` becomes ``file:layer3.safetensors#1f0c9a22``. Where it
lies reaches worker processes through the environment. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from bench.errors import WrongUsageError, unknown

KINDS = ("normal", "minilm", "matched", "file")
REAL = ("minilm", "file")  # a model made these tensors
LAYERS = 6

_PLACES = "ATTENTION_BENCH_INPUT_FILES"
_DIGEST_LETTERS = 8
_STRETCHED = "stretched"


def kind_of(text: str) -> str:
    """The kind that a source's text names. Nothing is parsed: of a record that is read, the file need not be here."""
    return text.partition(":")[0].partition("@")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Parsed ``--inputs``. ``file``: a name with the digest of what it holds; ``str`` gives the canonical text."""

    kind: str
    layer: int | None = None
    stretched: bool = False
    file: str | None = None

    def __str__(self) -> str:
        if self.kind == "file":
            return f"file:{self.file}"
        parts = [
            self.kind,
            *([] if self.layer is None else [str(self.layer)]),
            *([_STRETCHED] if self.stretched else []),
        ]
        return ":".join(parts) + (f"@{self.file}" if self.file else "")

    @property
    def is_real(self) -> bool:
        """Whether a model made these tensors."""
        return self.kind in REAL


def parse(text: str) -> Source:
    """The source that ``text`` spells; a file in it must be there.

    Raises:
        WrongUsageError: another kind, an unusable layer, or no such file.

    """
    head, at, file = (text, "", "") if text.startswith("file:") else text.partition("@")
    kind, *arguments = head.split(":", 1) if text.startswith("file:") else head.split(":")
    match kind:
        case "normal" if not arguments and not at:
            return Source(kind=kind)
        case "file" if arguments and arguments[0]:
            return Source(kind=kind, file=_named(arguments[0]))
        case "minilm" | "matched" if not at or file:
            stretched = kind == "minilm" and arguments[-1:] == [_STRETCHED]
            layer = _layer(arguments[:-1] if stretched else arguments, text)
            return Source(kind=kind, layer=layer, stretched=stretched, file=_named(file) if at else None)
    if kind in KINDS:
        raise WrongUsageError(
            "expected inputs such as normal, minilm, minilm:3, minilm:3:stretched, minilm@notes.txt, matched:3 or "
            f"file:layer3.safetensors, got {text!r}"
        )
    raise unknown("inputs", text, KINDS)


def _layer(arguments: list[str], text: str) -> int | None:
    match arguments:
        case []:
            return None
        case [layer] if layer.isdecimal() and int(layer) < LAYERS:
            return int(layer)
        case _:
            raise WrongUsageError(f"expected a layer from 0 to {LAYERS - 1}, as in minilm:3, got {text!r}")


# --- files --------------------------------------------------------------------------------------------------------


def locate(file: str) -> Path:
    """Where the file of a canonical source lies.

    Raises:
        WrongUsageError: no file of that name with that content is known.

    """
    name, _, digest = file.rpartition("#")
    for path in [*map(Path, filter(None, os.environ.get(_PLACES, "").split(os.pathsep))), Path(name)]:
        if path.name == name and path.is_file() and _digest(path) == digest:
            return path
    raise WrongUsageError(f"expected the file {name} whose SHA-256 begins with {digest}, found none; give its path")


def _named(text: str) -> str:
    """Name and digest of a path, which from now on can be found by them; or of a canonical text as it is."""
    path = Path(text)
    if path.is_file():
        places = [place for place in os.environ.get(_PLACES, "").split(os.pathsep) if place]
        if str(path.resolve()) not in places:
            os.environ[_PLACES] = os.pathsep.join([*places, str(path.resolve())])
        return f"{path.name}#{_digest(path)}"
    if "#" in text:
        locate(text)
        return text
    raise WrongUsageError(f"expected a file of inputs, there is none at {text}")


def _digest(path: Path) -> str:
    status = path.stat()
    return _digest_of(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=32)
def _digest_of(path: Path, size: int, changed: int) -> str:
    """Computed again only where the file has changed."""
    del size, changed
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGEST_LETTERS]
