"""A worker process from outside: start it, ask it, and be rid of it and of all that it started, whatever it does.

A worker that overruns its time, eats the machine's memory or dies is one :class:`LostError`, which says in
which stage and how. What workers print goes to a file of bounded size, whose end can enter a message.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec
import psutil

from bench import wording
from bench.errors import BenchError, WrongUsageError
from bench.measure import room
from bench.measure.verdicts import tidy
from bench.record import Crashed, OutOfMemory, Timeout
from bench.sweep import keeper, messages

ENGINE = "bench.sweep.engine"
KEPT = sys.platform == "linux"
# Whether a free returns pages to the system, which the next call then faults in again, depends on what happens to lie
# at the end of the heap: calls of some milliseconds take twice as long in one process as in the next. The first number
# is where the C library itself ends up in a process that lives long enough.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}

_TICK_SECONDS = 0.1
_GRACE_SECONDS = 5.0
_READ_BYTES = 1 << 16
_OUTPUT_BYTES = 16 << 20
_TAIL_BYTES = 1 << 16
_SWEEPS = 3
_START_SECONDS = 10.0
_TOKEN = "ATTENTION_BENCH_WORKER"  # noqa: S105  # marks the processes that a worker starts, no secret
_LEAST_RESERVE_BYTES, _MOST_RESERVE_BYTES = 256 << 20, 2 << 30
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+) in (\S+)', re.MULTILINE)


class LostError(Exception):
    """The worker is gone. ``outcome`` is what that makes of the case that it was asked to measure."""

    def __init__(self, outcome: Timeout | OutOfMemory | Crashed) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class StartError(BenchError):
    """No process, no pipe or no folder could be had."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Home:
    """The Python that a worker runs in, the folders that it imports from first, and what its environment has beside.

    ``scratch``: where its temporary files go, if not where the system wants them.
    """

    python: str = sys.executable
    folders: tuple[Path, ...] = (Path(__file__).parents[2],)
    environment: Mapping[str, str] = field(default_factory=dict)
    scratch: Path | None = None


HERE = Home()


class Supervised:
    """A worker process with an engine and an environment of its own. A context manager.

    ``memory_bytes`` bounds what it may hold; without it, it ends where the system's memory does. ``threads`` sizes
    the pools of libraries that read the environment.
    """

    def __init__(
        self,
        *,
        engine: str = ENGINE,
        threads: int | None = None,
        memory_bytes: int | None = None,
        home: Home = HERE,
    ) -> None:
        self._engine = engine
        self._threads = threads
        self._memory_bytes = memory_bytes
        self._home = home
        self._stage = "start"
        self._busy = True
        self._pid: int | None = None

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            StartError: the system does not let us.

        """
        self._token = f"{os.getpid()}.{time.monotonic_ns()}"
        self._oom_kills = _oom_kills()
        self._unframer = messages.Unframer(messages.AnyReply)
        try:
            self._folder = tempfile.TemporaryDirectory(
                prefix="attention-bench-", dir=self._home.scratch, ignore_cleanup_errors=True
            )
            self._start(Path(self._folder.name) / "output")
        except OSError as error:
            raise StartError(f"cannot start a worker: {error.strerror}; mend this and give --resume") from error
        return self

    @property
    def pid(self) -> int:
        """The process in which cases are measured."""
        if self._pid is None:
            self._pid = _first_child(self._process) if KEPT else self._process.pid
        return self._pid

    def _start(self, output: Path) -> None:
        self._output = output
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        os.set_blocking(self._replies, False)
        try:
            with output.open("ab") as printed:
                self._process = subprocess.Popen(  # noqa: S603  # our own module
                    self._command(requests, replies),
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    pass_fds=(requests, replies),
                    env=self._environment(),
                    start_new_session=True,
                )
        finally:
            os.close(requests)
            os.close(replies)

    def _command(self, requests: int, replies: int) -> list[str]:
        """A worker, and on Linux a keeper around it, by whose end or ours all that it started ends."""
        parent = keeper.KEEPER if KEPT else str(os.getpid())
        worker = ["-m", "bench.sweep.worker", parent, str(requests), str(replies), self._engine]
        kept = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), self._folder.name] if KEPT else []
        return [*kept, self._home.python, *worker]

    def _environment(self) -> Mapping[str, str]:
        """Ours, with compiler caches that begin empty, and ways for what it starts to be found again."""
        folder = Path(self._folder.name)
        code = map(str, self._home.folders)
        changed = {
            "PYTHONPATH": os.pathsep.join(filter(None, (*code, os.environ.get("PYTHONPATH")))),
            "TMPDIR": str(folder),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            # Compile in the worker itself: a pool of compilers would still be there while something is timed.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            # Threads of one call wait for each other asleep. Where something else wants a core too, those that spin
            # take it from those that they wait for, and a call lasts ten times as long.
            "OMP_WAIT_POLICY": "passive",
            **ALLOCATOR,
            _TOKEN: self._token,
            **self._home.environment,
        }
        if self._threads is not None:
            changed |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self._threads))
        return {**os.environ, **changed}

    # --- asking -----------------------------------------------------------------------------------------------

    def ask(
        self,
        request: messages.Request,
        *,
        timeout_seconds: float,
        on_stage: Callable[[str], None] = lambda _: None,
    ) -> messages.AnyReply:
        """The reply to a request; the worker is gone for good if there is none.

        Raises:
            LostError: it died, took too long, or took too much memory.
            WrongUsageError: it refused, since a file or an option of the user's is wrong.

        """
        self._busy = True
        with contextlib.suppress(BrokenPipeError):  # it is dead, which the replies will show
            messages.write(self._requests, messages.frame(request))
        try:
            for reply in self._heard(time.monotonic() + timeout_seconds, timeout_seconds):
                if not isinstance(reply, messages.Doing):
                    break
                self._stage = reply.stage
                on_stage(reply.stage)
        except LostError:
            self.end()
            raise
        self._busy = False
        if isinstance(reply, messages.Refused):
            raise WrongUsageError(reply.message)
        return reply

    def _heard(self, deadline: float, timeout_seconds: float) -> Iterator[messages.AnyReply]:
        """What the worker says, for as long as it lives and may go on."""
        next_look = time.monotonic() + _TICK_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= deadline:
                    raise self._lost(Timeout, f"not done after {timeout_seconds:g} s{self._where()}")
                if now >= next_look:
                    self._look_after()
                    next_look = now + _TICK_SECONDS
                ready = selector.select(min(deadline - now, _TICK_SECONDS))
                dead = not ready and self._process.poll() is not None  # a child of its may hold the pipe open
                data = b"" if dead else self._read() if ready else None
                if data == b"":
                    raise self._died()
                if data:
                    yield from self._messages(data)

    def _read(self) -> bytes | None:
        try:
            return os.read(self._replies, _READ_BYTES)
        except BlockingIOError:
            return None

    def _messages(self, data: bytes) -> Iterator[messages.AnyReply]:
        try:
            yield from self._unframer.feed(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._lost(Crashed, f"the worker said what is no message{self._where()}: {error}") from error

    def _where(self) -> str:
        """What it was doing, where the outcome's stage does not say it."""
        return f", {self._stage}" if " " in self._stage else ""

    # --- looking after it -------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """End a worker that takes the machine down with it, and keep what it prints small."""
        memory = room.tightest()
        reserve = min(max(memory.total_bytes // 32, _LEAST_RESERVE_BYTES), _MOST_RESERVE_BYTES)
        try:
            held = psutil.Process(self.pid).memory_info().rss
        except psutil.Error:
            return
        if self._memory_bytes is not None and held > self._memory_bytes:
            raise self._lost(
                OutOfMemory, f"ended at {wording.size(held)}, above {wording.size(self._memory_bytes)} (--memory-limit)"
            )
        if memory.left_bytes < reserve and held > reserve:
            left = f"with {wording.size(memory.left_bytes)} left to the system"
            raise self._lost(OutOfMemory, f"ended at {wording.size(held)} {left}, lest the machine come to a halt")
        if self._output.stat().st_size > _OUTPUT_BYTES:
            os.truncate(self._output, 0)

    def _lost(self, kind: type[Timeout | OutOfMemory | Crashed], message: str) -> LostError:
        return LostError(kind(stage=self._stage, message=tidy(message)))

    def _died(self) -> LostError:
        """What the death of the worker says about its case."""
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return self._lost(Crashed, f"the worker closed its pipe{self._where()}{self._last_words()}")
        if code == -signal.SIGKILL and _oom_kills() > self._oom_kills:
            return self._lost(OutOfMemory, f"killed by the system, which ran out of memory{self._where()}")
        how = f"died of {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return self._lost(Crashed, f"the worker {how}{self._where()}{self._last_words()}")

    def _last_words(self) -> str:
        """Where it crashed, if Python could tell, or else the last line that it printed."""
        with self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        _, fatal, trace = text.rpartition("Fatal Python error")
        if fatal and (frames := _FRAME.findall(trace)):
            file, line, function = next((frame for frame in frames if not _is_library(frame[0])), frames[0])
            return f", in {function} ({Path(file).name}, line {line})"
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        return f"; it last printed: {last}" if last else ""

    # --- ending it --------------------------------------------------------------------------------------------

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let it end by itself if it is idle, and kill whatever is left of it and of what it started."""
        if self._requests < 0:
            return
        started = self._descendants()
        os.close(self._requests)
        self._requests = -1
        if not self._busy:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
        if KEPT and self._process.poll() is None:
            self._process.terminate()  # it takes everything along
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        _kill(started)
        with contextlib.suppress(subprocess.TimeoutExpired):  # held up in the kernel: it will die when that lets go
            self._process.wait(_GRACE_SECONDS)
        for _ in range(_SWEEPS):
            if not _kill(self._marked()):
                break
        os.close(self._replies)
        self._folder.cleanup()

    def _descendants(self) -> list[psutil.Process]:
        try:
            return list(psutil.Process(self._process.pid).children(recursive=True))
        except psutil.Error:
            return []

    def _marked(self) -> list[psutil.Process]:
        """Those that left the worker's group and lost their parent, by the environment that they inherited."""
        return [process for process in psutil.process_iter() if _environment_of(process).get(_TOKEN) == self._token]


def _first_child(parent: subprocess.Popen[bytes]) -> int:
    """The one that a keeper started; it may take in orphans later. Its own number, if it has died before."""
    deadline = time.monotonic() + _START_SECONDS
    while parent.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(psutil.Error):
            if children := psutil.Process(parent.pid).children():
                return int(min(children, key=psutil.Process.create_time).pid)
        time.sleep(_TICK_SECONDS / 100)
    return parent.pid


def _is_library(file: str) -> bool:
    return "site-packages" in file or Path(file).is_relative_to(Path(os.__file__).parent)


def _environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):  # it has gone, or is another user's
        return {}


def _kill(processes: list[psutil.Process]) -> bool:
    """Kill them; whether there were any that still lived."""
    living = [process for process in processes if _alive(process)]
    for process in living:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(living)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _oom_kills() -> int:
    """How often the system has killed for want of memory so far; 0 where it does not say."""
    try:
        words = Path("/proc/vmstat").read_text(encoding="ascii").split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0
