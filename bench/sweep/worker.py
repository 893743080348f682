"""The process in which cases of one variant are measured: ``python -m bench.sweep.worker``, started by a sweep.

It answers requests that come through one pipe through another, one at a time, until the first is closed. What an
attention prints goes to a file of the sweep's. It dies with its parent, takes over the orphans of its children so that
none is overlooked, and is the first to go when the system runs out of memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import importlib
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any, Never, assert_never

import msgspec
import psutil

import variants
from bench import wording
from bench.errors import BenchError
from bench.fidelity.trial import NO_ATTENTION, TrialOutcome
from bench.measure import answers
from bench.measure.verdicts import explain, tidy
from bench.record import MOST_WHOLE, About, Case, Failed, Measured, Outcome, OutOfMemory, Settings, Stage
from bench.sweep import messages
from bench.sweep.pinning import pin
from variants import VariantError
from variants._contract import Variant

_READ_BYTES = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Worker:
    """Answers requests with the help of an engine such as :mod:`bench.sweep.engine`.

    ``requests`` are those still to come: one that takes turns reads its own.
    """

    def __init__(
        self,
        engine: ModuleType,
        send: Callable[[messages.Reply], None],
        requests: Iterator[messages.AnyRequest] | None = None,
    ) -> None:
        self.engine = engine
        self.send = send
        self.requests = iter(()) if requests is None else requests
        self._variant: Variant | None = None
        self._settings: Settings | None = None
        self._limit = ""

    def answer(self, request: messages.AnyRequest) -> messages.AnyReply:
        """The last reply to a request; a mistake of the user's is one too."""
        try:
            return self._answer(request)
        except (BenchError, VariantError) as error:
            return messages.Refused(message=str(error))

    def _answer(self, request: messages.AnyRequest) -> messages.AnyReply:  # noqa: PLR0911  # one for each request
        match request:
            case messages.Catalogue():
                return self.catalogue(request.files, request.device)
            case messages.Resolve():
                return resolved(self._find(request.variant, request.file), request.given)
            case messages.Survey():
                return self.survey(request)
            case messages.Probe():
                host, source = self.engine.probe(request.device, request.dtypes, request.settings)
                return messages.Probed(host=host, source=source)
            case messages.Prepare():
                return self.prepare(request)
            case messages.Measure():
                return self.measure(request)
            case messages.Try():
                return self.attempt(request)
            case messages.Turn() | messages.Stop():
                raise BenchError("a turn is taken while a case is measured")
            case _:
                assert_never(request)

    def _find(self, name: str, file: str | None) -> Variant:
        variant = self.engine.variant(name) if file is None else variants.load(Path(file))
        assert isinstance(variant, Variant)  # noqa: S101  # by the engine
        return variant

    def catalogue(self, files: list[str], device: str) -> messages.Catalogued:
        """Every variant there is, file by file, so that it is known which one a worker died of."""
        self.send(messages.Doing(stage="loading the built-in variants"))
        entries = {name: entry(variant) for name, variant in self.engine.every_variant().items()}
        for file in files:
            self.send(messages.Doing(stage=f"loading the variant file {file!r}"))
            variant = variants.load(Path(file))
            if variant.name in entries:
                raise VariantError(f"variant {variant.name!r} of {file!r} has the name of another one; rename it")
            entries[variant.name] = entry(variant, file)
        self.send(messages.Doing(stage="choosing the device"))
        return messages.Catalogued(entries=list(entries.values()), device=self.engine.choose_device(device))

    def survey(self, request: messages.Survey) -> messages.Surveyed:
        """What the variant says of its cases. One that raises has no reasons: measuring will tell what is wrong."""
        variant = self._find(request.cases[0].variant, request.file)
        return messages.Surveyed(prospects=[self._prospect(variant, case) for case in request.cases])

    def _prospect(self, variant: Variant, case: Case) -> messages.Prospect:
        try:
            parameters: Any = msgspec.convert(case.parameters, variant.parameters)
            reasons = answers.obstacles(variant, case.workload, parameters)
            if reasons:
                return messages.Prospect(reasons=reasons)
            return messages.Prospect(
                issued_flops=answers.flops(variant, case.workload, parameters),
                least_traffic_bytes=self.engine.least_traffic_bytes(case.workload),
            )
        except Exception:  # noqa: BLE001  # an attention may raise anything
            return messages.Prospect()

    def prepare(self, request: messages.Prepare) -> messages.Prepared:
        """Load the variant, and bring the process into the state in which every case begins."""
        self.send(messages.Doing(stage="start"))
        self._variant, self._settings = self._find(request.variant, request.file), request.settings
        if not request.device.startswith("cuda"):
            pin(request.settings.threads)
        self.engine.prepare(request.device, request.settings)
        if request.memory_bytes is not None and not request.device.startswith("cuda"):
            limit_memory(request.memory_bytes)
            self._limit = f"; the worker may hold {wording.size(request.memory_bytes)} (--memory-limit)"
        return messages.Prepared()

    def measure(self, request: messages.Measure) -> messages.Done:
        """Whatever happens short of the death of this process, there is an outcome."""
        if self._variant is None or self._settings is None:
            raise BenchError("a worker measures what it was prepared for")
        stages = Stages(self.send)
        before = left_by_now()
        outcome: Outcome
        try:
            outcome = self._asked_for(request)(
                request.case, self._variant, settings=self._settings, on_stage=stages.enter
            )
        except BaseException as error:  # noqa: BLE001  # an attention may raise anything, KeyboardInterrupt too
            outcome = explain(error, stages.now)
        if isinstance(outcome, OutOfMemory):
            outcome = msgspec.structs.replace(outcome, message=outcome.message + self._limit)
        seconds = stages.end()
        outcome, left = without_leftovers(outcome, left_by_now() - before, stages.now)
        # A failed call may have left anything behind, a CUDA context that only fails from now on, say.
        return messages.Done(outcome=outcome, seconds=seconds, retire=left or isinstance(outcome, Failed | OutOfMemory))

    def _asked_for(self, request: messages.Measure) -> Callable[..., Outcome]:
        engine: Any = self.engine
        if request.check_only:
            return engine.check  # type: ignore[no-any-return]
        if request.time_only:
            return partial(engine.time_in_turns, turn=self._turn)
        return partial(engine.measure, ceilings=request.ceilings)

    def _turn(self, block: Any) -> bool:
        """Show a block of :mod:`bench.measure.clock`, and wait until it is our turn again, if it ever is."""
        self.send(messages.Block(seconds=block.seconds, blemish=block.blemish))
        return isinstance(next(self.requests, None), messages.Turn)

    def attempt(self, request: messages.Try) -> messages.Tried:
        """Whatever happens short of the death of this process, there is an outcome."""
        stages = Stages(self.send)
        stages.enter("start")
        if not request.device.startswith("cuda"):
            pin(request.settings.threads)
        outcome: TrialOutcome
        try:
            self.engine.prepare(request.device, request.settings)
            outcome = self.engine.attempt(
                request.case,
                None if request.case.variant == NO_ATTENTION else self._find(request.case.variant, request.file),
                told=lambda stage: self.send(messages.Doing(stage=stage)),
                checkpoint=None if request.checkpoint is None else Path(request.checkpoint),
            )
        except (BenchError, VariantError) as error:
            outcome = Failed(stage="start", message=str(error))
        except BaseException as error:  # noqa: BLE001  # an attention may raise anything, KeyboardInterrupt too
            told = explain(error, stages.now)
            assert isinstance(told, OutOfMemory | Failed)  # noqa: S101  # what exceptions can mean
            outcome = told
        return messages.Tried(outcome=outcome)


class Stages:
    """Tells the sweep which stage begins, and remembers how long each took."""

    def __init__(self, send: Callable[[messages.Reply], None]) -> None:
        self._send = send
        self._since = monotonic()
        self._seconds: dict[str, float] = {}
        self.now: Stage = "start"

    def enter(self, stage: Stage) -> None:
        self.end()
        self.now = stage
        self._send(messages.Doing(stage=stage))

    def end(self) -> dict[str, float]:
        """Seconds by stage so far."""
        now = monotonic()
        self._seconds[self.now] = self._seconds.get(self.now, 0.0) + now - self._since
        self._since = now
        return self._seconds


# --- variants -------------------------------------------------------------------------------------------------


def entry(variant: Variant, file: str | None = None) -> messages.Entry:
    """What can be told of a variant to one who does not have it.

    Raises:
        VariantError: a default that no record can hold.

    """
    paper = variant.paper
    return messages.Entry(
        name=variant.name,
        about=About(
            family=variant.family,
            exact=variant.exact,
            time_exponent=variant.complexity.time,
            memory_exponent=variant.complexity.memory,
            summary=variant.summary,
            paper=None if paper is None else _cite(paper.title, paper.year, paper.arxiv),
            causal_leak=variant.causal_leak,
            claims=list(variant.claims),
        ),
        parameters=spelled_out(variant.parameters(), variant.name if file is None else f"{file!r}: {variant.name}"),
        equation=variant.equation,
        exact_when=variant.exact_when,
        traps=list(variant.traps),
        package=variant.package,
        file=file,
    )


def _cite(title: str, year: int, arxiv: str | None) -> str:
    return f"{title} ({year}{f', arXiv {arxiv}' if arxiv else ''})"


def resolved(variant: Variant, given: dict[str, Any]) -> messages.Resolved:
    """All parameters, of the types that the variant declares.

    Raises:
        VariantError: an unknown parameter, or a value that it cannot take.

    """
    from bench.errors import unknown

    names = [field.name for field in dataclasses.fields(variant.parameters)]
    for name in given:
        if name not in names:
            if not names:
                raise VariantError(f"{variant.name} has no parameters, got {name!r}")
            raise VariantError(str(unknown(f"parameter of {variant.name}", name, names)))
    try:
        parameters: Any = msgspec.convert(given, variant.parameters, strict=False)
    except msgspec.ValidationError as error:
        raise VariantError(f"parameters of {variant.name} cannot be {given}: {error}") from error
    return messages.Resolved(parameters=spelled_out(parameters, variant.name))


def spelled_out(parameters: Any, whose: str) -> dict[str, Any]:
    """Every field with its value: msgspec's own conversion leaves out those that kept their default.

    Raises:
        VariantError: a value that no record can hold; it would end the sweep at the first record with it.

    """
    values = {field.name: getattr(parameters, field.name) for field in dataclasses.fields(parameters)}
    for name, value in values.items():
        if not _can_be_stored(value):
            raise VariantError(
                f"{whose}: parameter {name!r} cannot be {value!r}, which no record can hold; expected text, a finite "
                f"number of at most {MOST_WHOLE}, None, or a list or table of these"
            )
    built: dict[str, Any] = msgspec.to_builtins(values)
    return built


def _can_be_stored(value: Any) -> bool:
    try:
        built = msgspec.to_builtins(value)
    except TypeError:  # of a type that has no form in JSON
        return False
    return _is_finite(built)


def _is_finite(built: Any) -> bool:
    match built:
        case float():
            return math.isfinite(built)
        case int():
            return abs(built) <= MOST_WHOLE
        case dict():
            return all(map(_is_finite, built.values()))
        case list() | tuple():
            return all(map(_is_finite, built))
        case _:
            return True


# --- the process ----------------------------------------------------------------------------------------------


def left_by_now() -> frozenset[psutil.Process | threading.Thread]:
    """Child processes and Python threads of this process."""
    children = psutil.Process().children(recursive=True)
    return frozenset([*children, *(thread for thread in threading.enumerate() if thread.is_alive())])


def without_leftovers(
    outcome: Outcome, left: frozenset[psutil.Process | threading.Thread], stage: str
) -> tuple[Outcome, bool]:
    """The outcome in the light of what the case left behind, and whether it left something.

    A child process took part of the machine for itself while the case was timed: that is a failure. A thread shares
    the process; it is noted.
    """
    children = sorted(_name(process) for process in left if isinstance(process, psutil.Process))
    threads = sorted(thread.name for thread in left if isinstance(thread, threading.Thread))
    if children and isinstance(outcome, Measured):
        return Failed(stage=stage, message=tidy(f"it left child processes behind: {', '.join(children)}")), True
    if threads and isinstance(outcome, Measured):
        note = f"it left threads behind: {', '.join(threads)}; the next case got a fresh process"
        return msgspec.structs.replace(outcome, notes=[*outcome.notes, tidy(note)]), True
    return outcome, bool(left)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return "one that has ended since"


def limit_memory(memory_bytes: int) -> None:
    """Let allocations fail beyond this much, which variants and torch report better than a kill does."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows, or a lower limit that is already set
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))


def settle_in(parent: int) -> None:
    """Die with the parent, adopt orphans, leave no core dumps, be killed first, tell where a crash happened."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:  # it died before we could ask to die with it
        os._exit(1)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()


def serve(requests: int, replies: int, engine: ModuleType) -> None:
    """Answer until there are no more requests."""
    owner = os.getpid()

    def send(reply: messages.Reply) -> None:
        if os.getpid() != owner:  # a child that an attention forked and let return here
            os._exit(0)
        messages.write(replies, messages.frame(reply))

    arriving = _arriving(requests)
    worker = Worker(engine, send, arriving)
    for request in arriving:
        send(worker.answer(request))


def _arriving(requests: int) -> Iterator[messages.AnyRequest]:
    unframer = messages.Unframer(messages.AnyRequest)
    while data := os.read(requests, _READ_BYTES):
        yield from unframer.feed(data)


def main() -> Never:
    """Serve the sweep that started this process. Ends without clean-up, which an attention could hold up."""
    parent, requests, replies = (int(argument) for argument in sys.argv[1:4])
    settle_in(parent)
    for descriptor in (requests, replies):
        os.set_inheritable(descriptor, False)
    code = 0
    try:
        serve(requests, replies, importlib.import_module(sys.argv[4]))
    except BaseException:  # noqa: BLE001  # whatever it is, the sweep reads it in the output of this process
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
