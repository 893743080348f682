"""Asks workers what variants are, and what they say of cases: the code of variants runs there, never in the sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from bench.errors import WrongUsageError
from bench.record import Case, Settings
from bench.sweep import messages
from bench.sweep.supervisor import ENGINE, HERE, Home, LostError, Supervised

_ANSWER_SECONDS = 300.0

_Reply = TypeVar("_Reply", bound=messages.Reply)


class Scout:
    """A context manager. One worker answers all questions, and is replaced where a variant takes it down.

    ``timeout_seconds``: what a variant file may take to be loaded, and to say what it thinks of a case; 300 at most.
    """

    def __init__(
        self,
        *,
        engine: str = ENGINE,
        threads: int | None = None,
        home: Home = HERE,
        timeout_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        self._of_files_seconds = min(timeout_seconds, _ANSWER_SECONDS)
        self._engine = engine
        self._home = home
        self._threads = threads
        self._worker: Supervised | None = None
        self._resolved: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def catalogue(self, files: Sequence[str], device: str) -> messages.Catalogued:
        """Every variant, and the device that is meant.

        Raises:
            WrongUsageError: a file gives no variant, or takes the process down; there is no such device.

        """
        request = messages.Catalogue(files=list(files), device=device)
        return _expect(messages.Catalogued, self._ask(request, loads=len(files)))

    def resolve(self, variant: str, file: str | None, given: dict[str, Any]) -> dict[str, Any]:
        """All parameters of a variant.

        Raises:
            WrongUsageError: an unknown name or an unusable value.

        """
        key = f"{variant} {given!r}"
        if key not in self._resolved:
            request = messages.Resolve(variant=variant, file=file, given=given)
            reply = self._ask(request, loads=int(file is not None))
            self._resolved[key] = _expect(messages.Resolved, reply).parameters
        return self._resolved[key]

    def survey(self, cases: Sequence[Case], files: Mapping[str, str | None]) -> list[messages.Prospect]:
        """What is known of each case beforehand; nothing of those of a variant that takes the process down."""
        found: dict[str, messages.Prospect] = {}
        for variant in dict.fromkeys(case.variant for case in cases):
            own = [case for case in cases if case.variant == variant]
            request = messages.Survey(cases=own, file=files.get(variant))
            try:
                loads = 0 if request.file is None else 1 + len(own)  # it is loaded, and asked of every case
                prospects = _expect(messages.Surveyed, self._asked(request, loads)).prospects
            except (LostError, WrongUsageError):
                continue
            found |= {case.key(): prospect for case, prospect in zip(own, prospects, strict=True)}
        return [found.get(case.key(), messages.Prospect()) for case in cases]

    def probe(self, device: str, dtypes: Sequence[str], settings: Settings) -> messages.Probed:
        """The machine with its ceilings, and the source."""
        return _expect(
            messages.Probed, self._ask(messages.Probe(device=device, dtypes=list(dtypes), settings=settings))
        )

    def _ask(self, request: messages.Request, *, loads: int = 0) -> messages.AnyReply:
        try:
            return self._asked(request, loads)
        except LostError as lost:
            raise WrongUsageError(f"{lost}; mend or leave out what it was doing") from lost

    def _asked(self, request: messages.Request, loads: int) -> messages.AnyReply:
        """The reply; ``loads``: how many times as long as a variant file may take it may; 0 if it is about none."""
        try:
            if self._worker is None:
                self._worker = Supervised(engine=self._engine, threads=self._threads, home=self._home).__enter__()
                if loads:  # what is our own takes its time apart: the start, and the import of what is built in
                    ready = messages.Catalogue(files=[], device="cpu")
                    self._worker.ask(ready, timeout_seconds=_ANSWER_SECONDS)
            seconds = min(loads * self._of_files_seconds, _ANSWER_SECONDS) if loads else _ANSWER_SECONDS
            return self._worker.ask(request, timeout_seconds=seconds)
        except LostError:
            self._worker = None
            raise


def _expect(kind: type[_Reply], reply: messages.AnyReply) -> _Reply:
    assert isinstance(reply, kind)  # noqa: S101  # a worker of ours answers what it is asked
    return reply
