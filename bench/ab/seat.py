"""The process of one side in one round, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

from bench.ab.scope import Scope
from bench.errors import WrongUsageError
from bench.record import Case, Failed, Outcome
from bench.sweep import messages, pinning
from bench.sweep.messages import Block
from bench.sweep.suite import DEFAULT_TIMEOUT_SECONDS
from bench.sweep.supervisor import LostError, Supervised

_START_SECONDS = 300.0


class Seat:
    """A context manager. A process that is lost, or should measure nothing more, is replaced when it is needed.

    ``cores``: those to stay on.
    """

    def __init__(self, scope: Scope, *, memory_bytes: int | None = None) -> None:
        self.scope = scope
        self.cores: Collection[int] | None = None
        self._memory_bytes = memory_bytes
        self._worker: Supervised | None = None
        self._variant: str | None = None

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

        What goes wrong here goes wrong again with the first case, and costs that.
        """
        try:
            self._settle(variant)
        except LostError:
            self.__exit__()
        except WrongUsageError:
            return

    def check(self, case: Case) -> Outcome:
        """All that a sweep does with a case."""
        reply = self._case(messages.Measure(case=case))
        assert not isinstance(reply, Block)  # noqa: S101  # nobody takes turns
        return reply

    def open(self, case: Case) -> Block | Outcome:
        """Get ready to time the case in turns: a block of the warm-up, or what became of the case instead."""
        return self._case(messages.Measure(case=case, time_only=True))

    def turn(self) -> Block | Outcome:
        """Time another block."""
        return self._reply(messages.Turn())

    def close(self) -> Outcome:
        """The outcome of the case whose blocks were timed."""
        reply = self._reply(messages.Stop())
        assert not isinstance(reply, Block)  # noqa: S101  # it has been told to stop
        return reply

    def _case(self, request: messages.Measure) -> Block | Outcome:
        variant = request.case.variant
        try:
            if self._worker is None:
                self._settle(variant)
            if variant != self._variant:
                self._prepare(variant)
        except LostError as lost:
            self.__exit__()
            return lost.outcome
        except WrongUsageError as error:
            return Failed(stage="start", message=str(error))
        return self._reply(request)

    def _settle(self, variant: str) -> None:
        if self._worker is None:
            self.__enter__()
        self._ask(messages.Resolve(variant=variant, file=self.scope.side.files.get(variant), given={}), _START_SECONDS)
        if self.cores is not None and self._worker is not None:
            pinning.pin(len(self.cores), self._worker.pid, self.cores)

    def _prepare(self, variant: str) -> None:
        request = messages.Prepare(
            variant=variant,
            file=self.scope.side.files.get(variant),
            device=self.scope.device,
            settings=self.scope.session.settings,
            memory_bytes=self._memory_bytes,
        )
        self._ask(request, _START_SECONDS)
        self._variant = variant

    def _reply(self, request: messages.Request) -> Block | Outcome:
        try:
            reply = self._ask(request, self.scope.session.settings.timeout_seconds or DEFAULT_TIMEOUT_SECONDS)
        except LostError as lost:
            self.__exit__()
            return lost.outcome
        if isinstance(reply, Block):
            return reply
        assert isinstance(reply, messages.Done)  # noqa: S101  # a worker of ours answers what it is asked
        if reply.retire:
            self.__exit__()
        return reply.outcome

    def _ask(self, request: messages.Request, timeout_seconds: float) -> messages.AnyReply:
        assert self._worker is not None  # noqa: S101  # started by whoever asks
        return self._worker.ask(request, timeout_seconds=timeout_seconds)
