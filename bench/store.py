"""Run files: one record a line, read with patience and written so that nothing measured is lost.

The only reader and writer of them. Reading streams, and a bad line costs that line. Writing goes line by
line, each on disk before :meth:`Appender.append` returns. Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec
from filelock import FileLock, Timeout

from bench.errors import BenchError, NotComparableError, WrongUsageError
from bench.record import SCHEMA, About, Case, Host, Outcome, Record, Settings, Source, encode, upgrade

KINDS = frozenset({"operator"})

_T = TypeVar("_T")


class WriteError(BenchError):
    """A record that could not be put on disk."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file held.

    ``records``: one for each run, case and process: the last line of each, in the order of their first lines.
    ``problems``: a sentence for every line that could not be read, naming file and line number.
    ``skipped``: how many lines there were of each kind that this version does not know.
    """

    records: list[Record]
    problems: list[str]
    skipped: dict[str, int]


# --- reading --------------------------------------------------------------------------------------------------


def read(*paths: Path | str) -> Reading:
    """Everything in a file, or in several files as if they were one.

    Raises:
        WrongUsageError: a file is missing, or cannot be read at all.
        NotComparableError: a line of a newer schema, or not one record of a known kind.

    """
    reading = _read(Path(path) for path in paths)
    if not reading.records:
        raise NotComparableError(_nothing_in(paths, reading))
    return reading


def _nothing_in(paths: Iterable[Path | str], reading: Reading) -> str:
    if reading.problems:
        why = f"{len(reading.problems)} unreadable lines, the first: {reading.problems[0]}"
    elif reading.skipped:
        why = f"only kinds unknown to this version ({', '.join(sorted(reading.skipped))})"
    else:
        why = "nothing was written yet"
    return f"expected records in {', '.join(str(path) for path in paths)}, found {why}; measure with 'run' first"


def _read(paths: Iterable[Path]) -> Reading:
    records: dict[tuple[str, bytes, int], Record] = {}
    problems: list[str] = []
    skipped: Counter[str] = Counter()
    parse = _Parser()
    for path in paths:
        for number, line in _lines(path):
            try:
                parsed = parse(line)
            except _NewerSchemaError as newer:
                raise NotComparableError(
                    f"{path} line {number} has schema {newer.schema}, and this version reads up to {SCHEMA}: "
                    "upgrade attention-bench to read it"
                ) from None
            except ValueError as error:
                cut = "" if line.endswith(b"\n") else "cut short, "
                problems.append(f"{path} line {number}: {cut}not a record ({error})")
                continue
            if isinstance(parsed, Record):
                records[parsed.run_id, _IDENTITY.encode(parsed.case), parsed.process] = parsed
            else:
                skipped[parsed] += 1
    return Reading(list(records.values()), problems, dict(skipped))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    except OSError as error:
        raise WrongUsageError(f"expected a run file (.jsonl), cannot read {path}: {error.strerror}") from error


class _NewerSchemaError(Exception):
    def __init__(self, schema: int) -> None:
        super().__init__(schema)
        self.schema = schema


class _Head(msgspec.Struct):
    """What every line of every schema has."""

    schema: int


class _Kind(msgspec.Struct):
    kind: str = "operator"


class _Line(msgspec.Struct, kw_only=True):
    """A record whose parts are still text: most of them repeat from line to line."""

    schema: int
    run_id: str
    case: msgspec.Raw
    outcome: msgspec.Raw
    process: int = 0
    about: msgspec.Raw
    settings: msgspec.Raw
    host: msgspec.Raw
    source: msgspec.Raw
    command: str | None = None
    at: str | None = None


class _Shared(Generic[_T]):
    """Decodes equal texts to one object, so that a million records hold one host and not a million."""

    def __init__(self, decode: Callable[[bytes], _T]) -> None:
        self._decode = decode
        self._seen: dict[bytes, _T] = {}

    def __call__(self, raw: msgspec.Raw) -> _T:
        text = bytes(raw)
        if text not in self._seen:
            self._seen[text] = self._decode(text)
        return self._seen[text]


class _Parser:
    """Turns lines into records, or into the name of a kind that is not known."""

    def __init__(self) -> None:
        self._head = msgspec.json.Decoder(_Head)
        self._line = msgspec.json.Decoder(_Line)
        self._outcome: msgspec.json.Decoder[Outcome] = msgspec.json.Decoder(Outcome)
        self._case = _Shared(_decode_case)
        self._about = _Shared(msgspec.json.Decoder(About).decode)
        self._settings = _Shared(msgspec.json.Decoder(Settings).decode)
        self._host = _Shared(msgspec.json.Decoder(Host).decode)
        self._source = _Shared(msgspec.json.Decoder(Source).decode)

    def __call__(self, text: bytes) -> Record | str:
        """The record, or the unknown kind.

        Raises:
            _NewerSchemaError: the line says so.
            ValueError: no JSON, or not a record.

        """
        try:
            return self._parse(text)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error

    def _parse(self, text: bytes) -> Record | str:
        line = self._line_of(text)
        case = self._case(line.case)
        if isinstance(case, str):
            return case
        return Record(
            run_id=line.run_id,
            case=case,
            outcome=self._outcome.decode(line.outcome),
            process=line.process,
            about=self._about(line.about),
            settings=self._settings(line.settings),
            host=self._host(line.host),
            source=self._source(line.source),
            command=line.command,
            at=line.at,
        )

    def _line_of(self, text: bytes) -> _Line:
        try:
            line = self._line.decode(text)
        except msgspec.ValidationError:  # it may be of another schema, and look like anything
            schema = self._head.decode(text).schema
            if schema == SCHEMA:
                raise
        else:
            schema = line.schema
            if schema == SCHEMA:
                return line
        if schema > SCHEMA:
            raise _NewerSchemaError(schema)
        upgraded = dict(upgrade(msgspec.json.decode(text, type=dict)))
        return self._line.decode(msgspec.json.encode(upgraded | {"schema": SCHEMA}))


def _decode_case(text: bytes) -> Case | str:
    """The case, or its kind where that is unknown and the rest may look like anything."""
    kind = msgspec.json.decode(text, type=_Kind).kind
    return msgspec.json.decode(text, type=Case) if kind in KINDS else kind


_IDENTITY = msgspec.json.Encoder(order="deterministic")


# --- writing --------------------------------------------------------------------------------------------------


class Appender:
    """Writes records to a file that it alone may write, each on disk before the call returns.

    A context manager. With ``resume``, ``reading`` is what the file already holds (nothing, if it is new).
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        self.reading = Reading([], [], {})
        self._resume = resume
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))
        self._file = -1

    def __enter__(self) -> Self:
        """Lock and open.

        Raises:
            WrongUsageError: the file exists and is not to be resumed, is in use, or cannot be written.
            NotComparableError: it is of a newer schema.

        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise WrongUsageError(
                f"{self.path} is being written by another run: wait for it, or give another --out"
            ) from None
        except OSError as error:
            raise WrongUsageError(_cannot_write(self.path, error)) from error
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        if self.path.exists():
            if not self._resume:
                raise WrongUsageError(
                    f"expected a new file, but {self.path} exists: continue it with --resume, or give another --out"
                )
            self.reading = _read([self.path])
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            _sync_folder(self.path.parent)
            self._end_cut_line()
        except OSError as error:
            raise WrongUsageError(_cannot_write(self.path, error)) from error

    def _end_cut_line(self) -> None:
        """Whatever a killed run left behind, the next record starts on a line of its own."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def append(self, *records: Record) -> None:
        """Put records on disk, all of them or none.

        Raises:
            WriteError: they are not there, and the file is as it was before.

        """
        lines = memoryview(b"".join(encode(record) + b"\n" for record in records))
        size = os.fstat(self._file).st_size
        try:
            while lines:  # a write to a full disk fails only when nothing fits
                lines = lines[os.write(self._file, lines) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, size)
            raise WriteError(
                f"cannot write to {self.path}: {error.strerror}; what was measured before is there, "
                "mend this and give --resume"
            ) from error

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            if not os.fstat(self._file).st_size:  # nothing came of it, and nothing should stand in the way next time
                self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1
        self._lock.release()


def _cannot_write(path: Path, error: OSError) -> str:
    return f"expected a file that can be written, cannot write {path}: {error.strerror}; give another --out"


def _sync_folder(folder: Path) -> None:
    """Makes the name of a new file survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
