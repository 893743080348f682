"""A round: one fresh process for each side, all alive at once, of which exactly one works at a time.

Cells come in random order, and within a cell the sides do, so that neither is always first, or always after the same
other case. All processes of a round are kept on the same cores. What an attention does to its process costs the cell,
and the rest goes on in a fresh one.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec

from bench.ab.scope import Scope
from bench.errors import WrongUsageError
from bench.record import Case, Crashed, Failed, Measured, Outcome, OutOfMemory
from bench.sweep import messages, pinning
from bench.sweep.suite import DEFAULT_TIMEOUT_SECONDS
from bench.sweep.supervisor import LostError, Supervised

_START_SECONDS = 300.0
_ONLY_AT_FIRST = ("predicted", "check", "memory")


@dataclass(frozen=True, slots=True)
class Visit:
    """What became of a case on one side in one round; ``timing_seconds``: what it took, checks and weighing apart."""

    scope: Scope
    case: Case
    outcome: Outcome
    timing_seconds: float


class Seat:
    """The process of one side in one round. A context manager."""

    def __init__(self, scope: Scope, *, memory_bytes: int | None = None) -> None:
        self.scope = scope
        self.cores: Collection[int] | None = None
        self._memory_bytes = memory_bytes
        self._worker: Supervised | None = None
        self._variant: str | None = None
        self._checking_seconds = 0.0

    def __enter__(self) -> Self:
        """Start the process, without waiting until it is ready."""
        side, settings = self.scope.side, self.scope.session.settings
        self._variant = None
        self._worker = Supervised(
            engine=side.engine, threads=settings.threads, memory_bytes=self._memory_bytes, home=side.home
        ).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def settle(self, variant: str) -> None:
        """Wait until everything is loaded, then stay on the cores. Importing may use any of them.

        Raises:
            LostError: the process did not survive that.
            WrongUsageError: there is no such variant.

        """
        if self._worker is None:
            self.__enter__()
        self._ask(messages.Resolve(variant=variant, file=self.scope.side.files.get(variant), given={}), _START_SECONDS)
        if self.cores is not None and self._worker is not None:
            pinning.pin(len(self.cores), self._worker.pid, self.cores)

    def visit(self, case: Case, *, time_only: bool) -> Visit:
        """Measure a case, or only time it. A process that died or ran out of memory gets a second chance."""
        started, self._checking_seconds = time.monotonic(), 0.0
        outcome = self._outcome(case, time_only=time_only)
        if isinstance(outcome, Crashed | OutOfMemory) and outcome.stage != "predicted":
            first = outcome
            outcome = self._outcome(case, time_only=time_only)
            if isinstance(outcome, Measured):
                note = f"a first try ended in stage {first.stage}: {first.message}"
                outcome = msgspec.structs.replace(outcome, notes=[*outcome.notes, note])
        return Visit(self.scope, case, outcome, time.monotonic() - started - self._checking_seconds)

    def _outcome(self, case: Case, *, time_only: bool) -> Outcome:
        try:
            if self._worker is None:
                self.settle(case.variant)
            self._prepare(case.variant)
            return self._measured(messages.Measure(case=case, time_only=time_only))
        except LostError as lost:
            self.__exit__()
            return lost.outcome
        except WrongUsageError as error:
            return Failed(stage="start", message=str(error))

    def _prepare(self, variant: str) -> None:
        if variant == self._variant:
            return
        request = messages.Prepare(
            variant=variant,
            file=self.scope.side.files.get(variant),
            device=self.scope.device,
            settings=self.scope.session.settings,
            memory_bytes=self._memory_bytes,
        )
        self._ask(request, _START_SECONDS)
        self._variant = variant

    def _measured(self, request: messages.Measure) -> Outcome:
        reply = self._ask(request, self.scope.session.settings.timeout_seconds or DEFAULT_TIMEOUT_SECONDS)
        assert isinstance(reply, messages.Done)  # noqa: S101  # a worker of ours answers what it is asked
        self._checking_seconds += sum(reply.seconds.get(stage, 0.0) for stage in _ONLY_AT_FIRST)
        if reply.retire:
            self.__exit__()
        return reply.outcome

    def _ask(self, request: messages.Request, timeout_seconds: float) -> messages.AnyReply:
        assert self._worker is not None  # noqa: S101  # started by whoever asks
        return self._worker.ask(request, timeout_seconds=timeout_seconds)


@dataclass(slots=True)
class Rounds:
    """Rounds over the same sides. A case is checked at its first visit on a side, and only timed at further ones.

    ``starting_seconds``: what it took to start the processes of the last round.
    """

    scopes: Sequence[Scope]
    draw: random.Random
    memory_bytes: int | None = None
    checked: set[tuple[str, str]] = field(default_factory=set)
    starting_seconds: float = 0.0
    seat: Callable[..., Seat] = Seat

    def visits(self, keys: Collection[str]) -> Iterator[Visit]:
        """One round. ``keys``: of the cases to visit, on each side that has them and can honour them.

        The next visit begins when it is asked for: by then the one before can be on disk.
        """
        able = [{case.key(): case for case in scope.able if case.key() in keys} for scope in self.scopes]
        order = list(dict.fromkeys(key for cases in able for key in cases))
        if not order:
            return
        self.draw.shuffle(order)
        cores, started = self._cores(), time.monotonic()
        with contextlib.ExitStack() as stack:
            seats = [stack.enter_context(self.seat(scope, memory_bytes=self.memory_bytes)) for scope in self.scopes]
            for seat, cases in zip(seats, able, strict=True):
                seat.cores = cores
                if cases:
                    _settle(seat, next(iter(cases.values())).variant)
            self.starting_seconds = time.monotonic() - started
            for key in order:
                pairs = [(seat, cases[key]) for seat, cases in zip(seats, able, strict=True) if key in cases]
                self.draw.shuffle(pairs)
                for seat, case in pairs:
                    place = (seat.scope.side.name, key)
                    yield seat.visit(case, time_only=place in self.checked)
                    self.checked.add(place)

    def _cores(self) -> list[int] | None:
        on_gpu = self.scopes[0].device.startswith("cuda")
        return None if on_gpu else pinning.idlest(self.scopes[0].session.settings.threads)


def _settle(seat: Seat, variant: str) -> None:
    """All have loaded before the first one works. What goes wrong here goes wrong again, and costs the case then."""
    try:
        seat.settle(variant)
    except LostError:
        seat.__exit__()
    except WrongUsageError:
        return
