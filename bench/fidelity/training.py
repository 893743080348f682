"""Trains the small model on a task with a variant as its attention, until it is solved or its steps are spent.

What a step sees depends on the seed and the step alone, and a checkpoint holds everything else: a training that was
killed goes on to the same numbers, to the bit, on the same machine with as many threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from bench.fidelity import tasks
from bench.fidelity.model import HEAD_DIM, HEADS, Model
from bench.fidelity.tasks import SILENT, Batch, Task
from bench.fidelity.trial import NO_ATTENTION, SOLVED, Trained
from variants._contract import Workload

if TYPE_CHECKING:
    from torch import Tensor

    from bench.fidelity.trial import TrialCase
    from variants._contract import Attend, Variant

_STEPS_BETWEEN, _TRIED = 50, 256
_STOP_AT = 0.99
_RATE, _WARM_SHARE, _MOST_NORM = 3e-3, 0.1, 1.0
_CHECKPOINT_SECONDS = 10.0

Told = Callable[[str], None]


def workload(task: str, *, length: int, batch: int, seed: int, device: str, mask: str = "full") -> Workload:
    """What the variant is asked for in every layer."""
    return Workload(
        batch=batch,
        heads=HEADS,
        kv_heads=HEADS,
        query_length=length,
        key_length=length,
        head_dim=HEAD_DIM,
        device=device,
        mask=mask,
        mode="fwd_bwd",
        inputs=task,
        seed=seed,
    )


def attention(case: TrialCase, variant: Variant | None, parameters: Any) -> Attend:
    """The variant's, or none at all: zeros, which leave what the convolutions and the position see."""
    if variant is None:
        assert case.variant == NO_ATTENTION  # noqa: S101  # the only one without a variant
        return lambda query, key, value: torch.zeros_like(value)  # noqa: ARG005  # an attention takes all three
    return variant.build(case.workload, parameters)


@dataclass(slots=True)
class Run:
    """A training on its way: everything that a checkpoint holds."""

    model: Model
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    step: int = 0
    seconds: float = 0.0
    accuracies: list[tuple[int, float]] = field(default_factory=list)
    seconds_to_target: float | None = None

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "accuracies": self.accuracies,
            "seconds_to_target": self.seconds_to_target,
            "random": torch.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.accuracies = [(step, accuracy) for step, accuracy in state["accuracies"]]
        self.seconds_to_target = state["seconds_to_target"]
        torch.set_rng_state(state["random"])


def trained(
    case: TrialCase, variant: Variant | None, parameters: Any, *, told: Told, checkpoint: Path | None = None
) -> Trained:
    """Train to the end, from ``checkpoint`` on if it is there; it is written now and then.

    Raises:
        ValueError: the loss is not finite.

    """
    task, steps = tasks.TASKS[case.task], int(case.options["steps"])
    run = _begun(case, task, attention(case, variant, parameters), steps)
    continued = checkpoint is not None and checkpoint.is_file()
    if continued and checkpoint is not None:
        run.load(torch.load(checkpoint, weights_only=True))
    began_at, written = time.perf_counter() - run.seconds, time.perf_counter()
    while run.step < steps and not _is_solved(run):
        _train(run, case, task)
        run.seconds = time.perf_counter() - began_at
        if run.step % _STEPS_BETWEEN == 0 or run.step == steps:
            accuracy = _tried(run.model, case, task)[0]
            run.accuracies.append((run.step, accuracy))
            if accuracy >= SOLVED and run.seconds_to_target is None:
                run.seconds_to_target = run.seconds
            told(f"step {run.step} of {steps}, accuracy {accuracy:.2f}")
            if checkpoint is not None and time.perf_counter() - written > _CHECKPOINT_SECONDS:
                _write(checkpoint, run)
                written = time.perf_counter()
    return _outcome(run, case, task, steps, continued=continued)


def _begun(case: TrialCase, task: Task, attend: Attend, steps: int) -> Run:
    torch.manual_seed(case.workload.seed)
    length = case.workload.query_length
    model = Model(tokens=task.tokens, answers=task.answers, length=length, layers=task.layers, attend=attend)
    model.to(case.workload.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps, pct_start=_WARM_SHARE)
    return Run(model, optimizer, schedule)


def _is_solved(run: Run) -> bool:
    return bool(run.accuracies) and run.accuracies[-1][1] >= _STOP_AT


def _train(run: Run, case: TrialCase, task: Task) -> None:
    batch = _batch(case, task, case.workload.batch, f"train {run.step}")
    loss = cross_entropy(run.model(batch.tokens).flatten(0, 1), batch.answers.flatten(), ignore_index=SILENT)
    if not bool(loss.isfinite()):
        raise ValueError(f"the loss is {float(loss.detach())} at step {run.step}")
    run.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), _MOST_NORM)
    run.optimizer.step()
    run.schedule.step()
    run.step += 1


def _tried(model: Model, case: TrialCase, task: Task) -> tuple[float, list[float]]:
    """Accuracy over all answers of sequences that are not trained on, and by depth, if they have one."""
    hits: list[Tensor] = []
    depths: list[Tensor] = []
    for part in range(-(-_TRIED // case.workload.batch)):
        batch = _batch(case, task, case.workload.batch, f"try {part}")
        with torch.no_grad():
            right = (model(batch.tokens).argmax(dim=-1) == batch.answers).double()
        asked = batch.answers != SILENT
        hits.append(torch.stack([(right * asked).sum(dim=1), asked.sum(dim=1).double()], dim=1))
        if batch.depths is not None:
            depths.append(batch.depths)
    counted = torch.cat(hits).cpu()
    by_depth = []
    if depths:
        depth = torch.cat(depths).cpu()
        by_depth = [_share(counted[depth == quarter]) for quarter in range(int(depth.max()) + 1)]
    return _share(counted), by_depth


def _share(counted: Tensor) -> float:
    asked = float(counted[:, 1].sum())
    return float(counted[:, 0].sum()) / asked if asked else 0.0


def _batch(case: TrialCase, task: Task, count: int, which: str) -> Batch:
    seed = f"{task.name}:{case.workload.seed}:{which}"
    drawn = tasks.batch(task, count=count, length=case.workload.query_length, options=case.options, seed=seed)
    return Batch(*(None if part is None else part.to(case.workload.device) for part in drawn))  # type: ignore[arg-type]  # the first two are never None


def _outcome(run: Run, case: TrialCase, task: Task, steps: int, *, continued: bool) -> Trained:
    accuracy, by_depth = _tried(run.model, case, task)
    return Trained(
        accuracies=run.accuracies,
        final_accuracy=accuracy,
        steps=run.step,
        seconds=run.seconds,
        steps_to_target=next((step for step, reached in run.accuracies if reached >= SOLVED), None),
        seconds_to_target=run.seconds_to_target,
        chance=task.chance,
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        stopped_early=run.step < steps,
        by_depth=by_depth,
        notes=["continued from a checkpoint"] if continued else [],
    )


def _write(checkpoint: Path, run: Run) -> None:
    """In one step: a kill leaves the one before or this one."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    partial = checkpoint.with_suffix(".part")
    torch.save(run.state(), partial)
    os.replace(partial, checkpoint)  # noqa: PTH105  # the same, but said to be atomic
