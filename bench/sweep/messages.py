"""What a sweep and its worker say to each other, and how that goes through a pair of pipes.

Frames of MessagePack rather than JSON, since JSON has no NaN, and a NaN must arrive to be refused. The pipes are apart
from the standard streams: an attention may print what it likes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from bench.fidelity.trial import TrialCase, TrialOutcome
from bench.record import About, Case, Host, Outcome, Settings, Source

_LENGTH_BYTES = 4


class Request(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a sweep asks of a worker."""


class Catalogue(Request, frozen=True, kw_only=True):
    """Which variants are there, and which device is meant? → :class:`Catalogued`."""

    files: list[str]
    device: str


class Resolve(Request, frozen=True, kw_only=True):
    """All parameters of a variant where some are ``given``, perhaps as text → :class:`Resolved`."""

    variant: str
    file: str | None
    given: dict[str, Any]


class Survey(Request, frozen=True, kw_only=True):
    """What stands against these cases of one variant, and how much they compute → :class:`Surveyed`."""

    cases: list[Case]
    file: str | None


class Probe(Request, frozen=True, kw_only=True):
    """The machine, its ceilings for ``dtypes``, and the source → :class:`Probed`."""

    device: str
    dtypes: list[str]
    settings: Settings


class Prepare(Request, frozen=True, kw_only=True):
    """Get ready to measure cases of one variant → :class:`Prepared`."""

    variant: str
    file: str | None
    device: str
    settings: Settings
    memory_bytes: int | None = None


class Measure(Request, frozen=True, kw_only=True):
    """Measure a case → :class:`Doing`, any number, and :class:`Done`.

    With ``check_only`` the oracle alone is asked. With ``time_only`` the clock is, of a case that was checked, in
    turns: → :class:`Block`, and then one for every :class:`Turn`, until there is a :class:`Stop`, or nothing more to be
    had → :class:`Done`.
    """

    case: Case
    ceilings: dict[str, float] = {}
    check_only: bool = False
    time_only: bool = False


class Turn(Request, frozen=True, kw_only=True):
    """Time another block → :class:`Block`."""


class Stop(Request, frozen=True, kw_only=True):
    """That was the last turn → :class:`Done`."""


class Try(Request, frozen=True, kw_only=True):
    """Make a trial → :class:`Doing`, any number, and :class:`Tried`. ``checkpoint``: where a training may be kept."""

    case: TrialCase
    file: str | None
    device: str
    settings: Settings
    checkpoint: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a worker says."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A variant, as far as it can be told without having it. ``parameters`` are its defaults."""

    name: str
    about: About
    parameters: dict[str, Any]
    equation: str = ""
    exact_when: str = ""
    traps: list[str] = []
    package: str | None = None
    file: str | None = None


class Catalogued(Reply, frozen=True, kw_only=True):
    """Every variant; and the device, no longer ``auto``."""

    entries: list[Entry]
    device: str


class Resolved(Reply, frozen=True, kw_only=True):
    """Every parameter of the variant."""

    parameters: dict[str, Any]


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a case beforehand: reasons against it, and how much it computes and moves at least."""

    reasons: list[str] = []
    issued_flops: int | None = None
    least_traffic_bytes: int | None = None


class Surveyed(Reply, frozen=True, kw_only=True):
    """A prospect for every case asked about, in order."""

    prospects: list[Prospect]


class Probed(Reply, frozen=True, kw_only=True):
    """Where and from what records will come."""

    host: Host
    source: Source


class Prepared(Reply, frozen=True, kw_only=True):
    """The variant is there."""


class Doing(Reply, frozen=True, kw_only=True):
    """A stage begins: should the worker die, it died in this one."""

    stage: str


class Block(Reply, frozen=True, kw_only=True):
    """The median seconds of a call in one block, and what disturbed it, if anything is known to have."""

    seconds: float
    blemish: str | None = None


class Done(Reply, frozen=True, kw_only=True):
    """What became of the case; the seconds spent in each stage; whether the worker should measure nothing more."""

    outcome: Outcome
    seconds: dict[str, float] = {}
    retire: bool = False


class Tried(Reply, frozen=True, kw_only=True):
    """What became of a trial."""

    outcome: TrialOutcome


class Refused(Reply, frozen=True, kw_only=True):
    """What was asked cannot be answered, through a mistake in a file or an option."""

    message: str


AnyRequest = Catalogue | Resolve | Survey | Probe | Prepare | Measure | Turn | Stop | Try
AnyReply = Catalogued | Resolved | Surveyed | Probed | Prepared | Doing | Block | Done | Tried | Refused


def frame(message: Request | Reply) -> bytes:
    """A message as it goes through a pipe: its length, and the message."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def write(descriptor: int, data: bytes) -> None:
    """All of ``data``, however many writes that takes."""
    while data:
        data = data[os.write(descriptor, data) :]


class Unframer:
    """Messages out of the bytes of a pipe, in whatever pieces these come."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that ``data`` completes.

        Raises:
            msgspec.DecodeError: what came is no message.

        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH_BYTES:end])
            del self._buffer[:end]
            yield self._decoder.decode(body)
