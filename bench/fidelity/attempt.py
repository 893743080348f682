"""One trial to its outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bench.fidelity import drop_in, tasks, training
from bench.fidelity.trial import DROP_IN, TrialCase, TrialOutcome
from bench.record import Unsupported
from variants._contract import Variant


def attempt(case: TrialCase, variant: Variant | None, *, told: training.Told, checkpoint: Path | None) -> TrialOutcome:
    """Put a variant into a model, or train one with it; without a variant, with no attention at all.

    Raises what the variant raises.
    """
    parameters: Any = None if variant is None else msgspec.convert(case.parameters, variant.parameters)
    reasons = obstacles(case, variant, parameters)
    if reasons:
        return Unsupported(reasons=reasons)
    if case.kind == DROP_IN:
        assert variant is not None  # noqa: S101  # by the obstacles
        return drop_in.replaced(case, variant, parameters, told=told)
    return training.trained(case, variant, parameters, told=told, checkpoint=checkpoint)


def obstacles(case: TrialCase, variant: Variant | None, parameters: Any) -> list[str]:
    """Why this trial cannot be made here."""
    own = [] if variant is None else [str(reason) for reason in variant.obstacles(case.workload, parameters)]
    if case.kind == DROP_IN:
        none = ["without attention there is nothing to drop in"] if variant is None else []
        return [*none, *own, *drop_in.obstacles(case)]
    return [*own, *tasks.obstacles(tasks.TASKS[case.task], case.workload.query_length, case.options)]
