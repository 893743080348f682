"""Makes trials in worker processes, one after the other, so that nothing an attention does ends the run.

Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.fidelity.trial import TASK, TrialCase, TrialOutcome
from bench.record import Failed, OutOfMemory, Settings, Timeout
from bench.sweep import messages
from bench.sweep.suite import DEFAULT_TRIAL_TIMEOUT_SECONDS
from bench.sweep.supervisor import ENGINE, LostError, Supervised


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where and how trials are made. ``files``: of variants that are not built in. ``checkpoints``: a folder."""

    device: str
    settings: Settings
    files: Mapping[str, str | None]
    checkpoints: Path
    memory_bytes: int | None = None
    engine: str = ENGINE

    @property
    def timeout_seconds(self) -> float:
        return self.settings.timeout_seconds or DEFAULT_TRIAL_TIMEOUT_SECONDS

    def worker(self) -> Supervised:
        return Supervised(engine=self.engine, threads=self.settings.threads, memory_bytes=self.memory_bytes)

    def checkpoint(self, case: TrialCase) -> Path:
        """Where the training of a case is kept while it goes on."""
        return self.checkpoints / f"{hashlib.sha256(case.key().encode()).hexdigest()[:16]}.pt"

    def forget(self, case: TrialCase) -> None:
        """Remove what was kept of a training, and what a kill left half written."""
        for kept in self.checkpoints.glob(f"{self.checkpoint(case).stem}.*"):
            kept.unlink()


def outcomes(
    every: Sequence[TrialCase], bench: Bench, on_stage: Callable[[TrialCase, str], None] = lambda *_: None
) -> Generator[tuple[TrialCase, TrialOutcome], None, None]:
    """What became of each trial, as soon as that is known; the next begins when the next is asked for.

    Trainings get a process each, so that they repeat to the bit; drop-ins share one, which embeds exactly but once, for
    as long as none fails. Closing the iterator ends the worker.
    """
    worker: Supervised | None = None
    try:
        for case in every:
            if worker is not None and case.kind == TASK:
                worker.end()
                worker = None
            if worker is None:
                worker = bench.worker().__enter__()
            try:
                outcome = _tried(worker, case, bench, on_stage)
            except LostError as lost:
                worker, outcome = None, lost.outcome
            if worker is not None and isinstance(outcome, Failed | OutOfMemory):  # it may have left anything behind
                worker.end()
                worker = None
            yield case, outcome
            # one that ran out of time may go on with --retry timeout
            if not isinstance(outcome, Timeout):
                bench.forget(case)
    finally:
        if worker is not None:
            worker.end()
        with contextlib.suppress(OSError):  # it was never made, or something is kept there
            bench.checkpoints.rmdir()


def _tried(
    worker: Supervised, case: TrialCase, bench: Bench, on_stage: Callable[[TrialCase, str], None]
) -> TrialOutcome:
    request = messages.Try(
        case=case,
        file=bench.files.get(case.variant),
        device=bench.device,
        settings=bench.settings,
        checkpoint=str(bench.checkpoint(case)) if case.kind == TASK else None,
    )
    reply = worker.ask(request, timeout_seconds=bench.timeout_seconds, on_stage=lambda stage: on_stage(case, stage))
    assert isinstance(reply, messages.Tried)  # noqa: S101  # a worker of ours answers what it is asked
    return reply.outcome
