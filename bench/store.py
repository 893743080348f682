"""Run files: one record a line, read with patience and written so that nothing measured is lost.

The only reader and writer of them. Reading streams, and a bad line costs that line. Writing goes line by
line, each on disk before :meth:`Appender.append` returns. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import gc
import os
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec
from filelock import FileLock, Timeout
from msgspec.structs import force_setattr

from bench import wording
from bench.errors import BenchError, NotComparableError, WrongUsageError
from bench.record import SCHEMA, About, Case, Host, Measured, Outcome, Record, Settings, Source, encode, upgrade

KINDS = frozenset({"operator"})

_READ_BYTES = 1 << 20

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
    ``apart``: lines of kinds that somebody else reads, as they are, each with where it stands.
    """

    records: list[Record]
    problems: list[str]
    skipped: dict[str, int]
    apart: list[tuple[str, bytes]] = field(default_factory=list)


# --- reading --------------------------------------------------------------------------------------------------


def read(*paths: Path | str, compactly: bool = False, apart: Collection[str] = ()) -> Reading:
    """Everything in a file, or in several files as if they were one.

    With ``compactly``, for reading alone: seconds are arrays of doubles, which fit a million records into memory.
    ``apart``: kinds whose lines are to be kept as they are, so that files are read but once.

    Raises:
        WrongUsageError: a file is missing, or cannot be read at all.
        NotComparableError: a line of a newer schema, or not one record of a known kind.

    """
    reading = _read((Path(path) for path in paths), compactly=compactly, apart=apart)
    if not reading.records and not reading.apart:
        raise NotComparableError(_nothing_in(paths, reading))
    return reading


def _nothing_in(paths: Iterable[Path | str], reading: Reading) -> str:
    if reading.problems:
        why = f"found {wording.counted(len(reading.problems), 'unreadable line')}, the first: {reading.problems[0]}"
    elif reading.skipped:
        why = f"found only kinds unknown to this version ({', '.join(sorted(reading.skipped))})"
    else:
        why = "but nothing was written yet"
    return f"expected records in {', '.join(str(path) for path in paths)}, {why}; measure with 'run' first"


def _read(paths: Iterable[Path], *, compactly: bool = False, apart: Collection[str] = ()) -> Reading:
    with _uncollected():
        return _gathered(paths, _Parser(compactly=compactly), apart)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing that is read here forms cycles; looking for them again and again would double the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _gathered(paths: Iterable[Path], parse: _Parser, apart: Collection[str]) -> Reading:
    records: dict[tuple[str, int, int], Record] = {}
    cases = _Identities()
    problems: list[str] = []
    skipped: Counter[str] = Counter()
    kept: list[tuple[str, bytes]] = []
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
                records[parsed.run_id, cases(parsed.case), parsed.process] = parsed
            elif parsed in apart:
                kept.append((f"{path} line {number}", line))
            else:
                skipped[parsed] += 1
    return Reading(list(records.values()), problems, dict(skipped), kept)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb", buffering=_READ_BYTES) as file:
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    yield number, line
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

    def __call__(self, raw: msgspec.Raw | bytes) -> _T:
        text = bytes(raw)
        if text not in self._seen:
            self._seen[text] = self._decode(text)
        return self._seen[text]


_Parts = tuple[bytes, bytes, bytes, bytes, bytes]


def _split(text: bytes, middle: bytes = b"") -> _Parts | None:
    """A line as we write it, around its outcome: what is before, it, the process, what is behind, the time.

    ``middle``: what was behind the process in another line. Mostly it is so here too, and need not be copied then.
    """
    outcome = text.find(b',"outcome":')
    at = text.rfind(b',"at":')
    about = at - len(middle)
    if not (middle and about > 0 and text.startswith(middle, about)):
        about = text.rfind(b',"about":', 0, max(at, 0))
        middle = text[about:at]
    process = text.rfind(b',"process":', 0, max(about, 0))
    if not 0 < outcome < process:
        return None
    end = text.rfind(b"}")
    return text[:outcome], text[outcome + 11 : process], text[process + 11 : about], middle, text[at + 6 : end]


class _Parser:
    """Turns lines into records, or into the name of a kind that is not known."""

    def __init__(self, *, compactly: bool) -> None:
        self._head = msgspec.json.Decoder(_Head)
        self._line = msgspec.json.Decoder(_Line)
        self._outcome = _Outcomes(compactly=compactly)
        self._case = _Shared(_decode_case)
        self._about = _Shared(msgspec.json.Decoder(About).decode)
        self._settings = _Shared(msgspec.json.Decoder(Settings).decode)
        self._host = _Shared(msgspec.json.Decoder(Host).decode)
        self._source = _Shared(msgspec.json.Decoder(Source).decode)
        self._heads: dict[bytes, tuple[str, Case]] = {}
        self._tails: dict[bytes, tuple[About, Settings, Host, Source, str | None]] = {}
        self._middle = b""
        self._number = msgspec.json.Decoder(int)
        self._text: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(str | None)

    def __call__(self, text: bytes) -> Record | str:
        """The record, or the unknown kind.

        Raises:
            _NewerSchemaError: the line says so.
            ValueError: no JSON, or not a record.

        """
        try:
            return self._repeated(text) or self._whole(text)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error

    def _repeated(self, text: bytes) -> Record | None:
        """Of a line that differs from earlier ones in its outcome, its process and its time alone: those are decoded.

        The rest is looked up by its text, which was found to be JSON on both sides of the outcome when it was kept.
        """
        parts = _split(text, self._middle)
        if parts is None:
            return None
        beginning, outcome, process, middle, at = parts
        self._middle = middle  # the very object, whose hash is known
        head, tail = self._heads.get(beginning), self._tails.get(middle)
        if head is None or tail is None:
            return None
        run_id, case = head
        about, settings, host, source, command = tail
        return Record(
            run_id=run_id,
            case=case,
            outcome=self._outcome(outcome),
            process=self._number.decode(process),
            about=about,
            settings=settings,
            host=host,
            source=source,
            command=command,
            at=self._text.decode(at),
        )

    def _keep(self, text: bytes, record: Record) -> None:
        """What a line shares with those to come, if it was written as we write."""
        parts = _split(text)
        if parts is None:
            return
        beginning, _, _, middle, _ = parts
        try:
            schema = msgspec.json.decode(beginning + b"}", type=_Head).schema
            msgspec.json.decode(b"{" + middle[1:] + b"}")
        except msgspec.DecodeError:  # it was cut elsewhere
            return
        if schema == SCHEMA:
            self._heads[beginning] = record.run_id, record.case
            self._tails[middle] = record.about, record.settings, record.host, record.source, record.command

    def _whole(self, text: bytes) -> Record | str:
        line = self._line_of(text)
        case = self._case(line.case)
        if isinstance(case, str):
            return case
        record = Record(
            run_id=line.run_id,
            case=case,
            outcome=self._outcome(bytes(line.outcome)),
            process=line.process,
            about=self._about(line.about),
            settings=self._settings(line.settings),
            host=self._host(line.host),
            source=self._source(line.source),
            command=line.command,
            at=line.at,
        )
        self._keep(text, record)
        return record

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


class _Outcomes:
    """Decodes outcomes. The names of the timer and of what was dispatched repeat from line to line: they are shared.

    With ``compactly`` seconds are arrays, a third as large as lists.
    """

    def __init__(self, *, compactly: bool) -> None:
        self._decode = msgspec.json.Decoder(Outcome).decode
        self._timers: dict[str, str] = {}
        self._dispatched: dict[tuple[str, ...], list[str]] = {}
        self._compactly = compactly

    def __call__(self, text: bytes) -> Outcome:
        outcome: Outcome = self._decode(text)
        if isinstance(outcome, Measured):
            timer, names = outcome.timer, outcome.dispatched
            force_setattr(outcome, "timer", self._timers.setdefault(timer, timer))
            force_setattr(outcome, "dispatched", self._dispatched.setdefault(tuple(names), names))
            if self._compactly:
                force_setattr(outcome, "seconds", array("d", outcome.seconds))
        return outcome


class _Identities:
    """A number for each case, the same for equal ones: texts may differ in order. Shared objects are looked up once."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder(order="deterministic").encode
        self._numbers: dict[bytes, int] = {}
        self._seen: dict[int, tuple[Case, int]] = {}  # the case is kept, so that its id is not given to another

    def __call__(self, case: Case) -> int:
        seen = self._seen.get(id(case))
        if seen is None:
            number = self._numbers.setdefault(self._encode(case), len(self._numbers))
            seen = self._seen[id(case)] = case, number
        return seen[1]


# --- writing --------------------------------------------------------------------------------------------------


class Appender:
    """Writes records to a file that it alone may write, each on disk before the call returns.

    A context manager. With ``resume``, ``reading`` is what the file already holds (nothing, if it is new), lines of the
    kinds ``apart`` as they are. A last line that a killed run left half written is ended, and costs itself alone.

    A file that somebody removes or moves away meanwhile is there again after the next record, whole; ``told`` hears so.
    """

    def __init__(
        self,
        path: Path,
        *,
        resume: bool = False,
        apart: Collection[str] = (),
        told: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.path = path
        self._told = told
        self.reading = Reading([], [], {})
        self._apart = apart
        self._resume = resume
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))
        self._file = -1

    def __enter__(self) -> Self:
        """Lock and open.

        Raises:
            WrongUsageError: the file exists and is not to be resumed, is no run file, is in use, or cannot be written.
            NotComparableError: it is of a newer schema.

        """
        refuse_unusable(self.path, resume=self._resume)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._acquire()
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

    def _acquire(self) -> None:
        """Lock, or say what stands against it.

        Raises:
            Timeout: another process holds the lock.
            OSError: there can be no lock here.

        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout:  # filelock takes a file that cannot be made for one that is held, and asks again
            os.close(os.open(self._lock.lock_file, os.O_RDWR | os.O_CREAT, 0o666))
            raise

    def _open(self) -> None:
        refuse_unusable(self.path, resume=self._resume)  # now that nobody else can make it
        if self.path.exists():
            self.reading = _read([self.path], apart=self._apart)
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            _sync_folder(self.path.parent)
            self._end_last_line()
        except OSError as error:
            raise WrongUsageError(_cannot_write(self.path, error)) from error

    def _end_last_line(self) -> None:
        """Whatever a killed run left behind, the next record starts on a line of its own.

        Raises:
            WrongUsageError: neither records nor anything like them: somebody else's file, which is left alone.

        """
        size = os.fstat(self._file).st_size
        is_ours = bool(self.reading.records or self.reading.apart or self.reading.skipped)
        if size and not is_ours and os.pread(self._file, 1, 0) != b"{":
            raise WrongUsageError(
                f"expected a run file to go on with, but no line of {self.path} is a record; give another --out"
            )
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def append(self, *records: Record) -> None:
        """Put records on disk, all of them or none.

        Raises:
            WriteError: they are not there, and the file is as it was before; or another one has taken its place.

        """
        lines = b"".join(encode(record) + b"\n" for record in records)
        size = os.fstat(self._file).st_size
        try:
            _write(self._file, lines)
        except OSError as error:
            os.ftruncate(self._file, size)
            raise WriteError(
                f"cannot write to {self.path}: {error.strerror}; what was measured before is there, "
                "mend this and give --resume"
            ) from error
        self._stay()

    def _stay(self) -> None:
        """See to it that the path still names what is written here: a removed file can be read while it is open.

        Raises:
            WriteError: it names something else, or nothing can be put there.

        """
        is_ours = self._is_ours()
        if is_ours is None:
            self._put_back(self.path)
            self._told(f"{self.path} was removed or moved away; what was measured so far is written there again")
        elif not is_ours:
            replaced, self.path = self.path, self.path.with_name(f"{self.path.stem}.{os.getpid()}{self.path.suffix}")
            self._put_back(self.path)
            raise WriteError(
                f"{replaced} was replaced by another file, which is left alone; what was measured so far is in "
                f"{self.path}: go on with it as --out, and --resume"
            )

    def _is_ours(self) -> bool | None:
        """Whether the path names the open file; None where nothing is there."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._file))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _put_back(self, path: Path) -> None:
        """Write the open file to a path where none is, and go on with that one."""
        target = Path(os.path.realpath(path))  # behind a link, where it points to
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                for start in range(0, os.fstat(self._file).st_size, _READ_BYTES):
                    _write(copy, os.pread(self._file, _READ_BYTES, start))
                _sync_folder(target.parent)
            except OSError:
                os.close(copy)
                target.unlink()
                raise
        except OSError as error:
            raise WriteError(
                f"the run file was removed or replaced, and what was measured cannot be written to {path}: "
                f"{error.strerror}"
            ) from error
        os.close(self._file)
        self._file = copy

    def __exit__(self, *_: object) -> None:
        try:
            if self._file >= 0:
                self._close()
        finally:
            self._lock.release()

    def _close(self) -> None:
        try:
            if os.fstat(self._file).st_size:
                self._stay()
            elif self._is_ours():  # nothing came of it, and nothing should stand in the way next time
                self.path.unlink()
        finally:
            os.close(self._file)
            self._file = -1


def refuse_unusable(path: Path, *, resume: bool) -> None:
    """Whether a path can be written to, as far as looking at it tells; nothing is touched.

    Raises:
        WrongUsageError: it is a folder, or exists and is not to be resumed.

    """
    if path.is_dir():
        raise WrongUsageError(f"expected a file such as run.jsonl, but {path} is a folder: name a file in it")
    if path.exists() and not resume:
        raise WrongUsageError(
            f"expected a new file, but {path} exists: continue it with --resume, or give another --out"
        )


def _write(handle: int, data: bytes) -> None:
    """All of it, on disk."""
    rest = memoryview(data)
    while rest:  # a write to a full disk fails only when nothing fits
        rest = rest[os.write(handle, rest) :]
    os.fsync(handle)


def _cannot_write(path: Path, error: OSError) -> str:
    return f"expected a file that can be written, cannot write {path}: {error.strerror}; give another --out"


def _sync_folder(folder: Path) -> None:
    """Makes the name of a new file survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
