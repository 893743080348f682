"""A run before it begins: its cases and trials with what is known of each, on this machine, under these settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bench.fidelity import fits
from bench.fidelity.trial import NO_ATTENTION, TrialCase
from bench.record import Case, Settings, Unsupported
from bench.sweep import plan, trials
from bench.sweep.messages import Entry, Prospect
from bench.sweep.plan import Cell
from bench.sweep.scout import Scout
from bench.sweep.suite import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Cases and trials in order; ``prospects`` by the key of either, ``entries`` by the name of a variant."""

    suite: Suite
    device: str
    settings: Settings
    cases: list[Case]
    trials: list[TrialCase]
    entries: Mapping[str, Entry]
    prospects: Mapping[str, Prospect]

    @property
    def cells(self) -> list[Cell]:
        return [Cell(case, process) for process in range(self.suite.processes) for case in self.cases]

    @property
    def files(self) -> dict[str, str | None]:
        """Where the variants are that are not built in."""
        return {name: entry.file for name, entry in self.entries.items()}

    @property
    def dtypes(self) -> list[str]:
        return list(dict.fromkeys(case.workload.dtype for case in self.cases))

    @property
    def trial_settings(self) -> Settings:
        """Those that the records of trials carry."""
        return msgspec.structs.replace(self.settings, timeout_seconds=self.suite.trial_timeout)

    def unsupported(self, case: Case) -> Unsupported | None:
        """The outcome of a case that its variant says it cannot honour, or whose inputs cannot be had."""
        reasons = [*self.prospects[case.key()].reasons, *fits.obstacles(case.workload)]
        return Unsupported(reasons=reasons) if reasons else None

    def reasons_against(self, trial: TrialCase) -> list[str]:
        """What the variant says against a trial; the model and the task may have more to say when it is made."""
        return [] if trial.variant == NO_ATTENTION else list(self.prospects[trial.key()].reasons)


def draw_up(scout: Scout, suite: Suite, *, variant_files: Sequence[str], shard: str | None) -> Blueprint:
    """Work out what a suite means here.

    Raises:
        WrongUsageError: something in it, in the options or in a variant file cannot be used.

    """
    catalogued = scout.catalogue(variant_files, suite.device)
    entries = {entry.name: entry for entry in catalogued.entries}

    def resolve(variant: str, given: dict[str, Any]) -> dict[str, Any]:
        return scout.resolve(variant, entries[variant].file, given)

    cases = plan.cases(suite, list(entries), catalogued.device, resolve)
    every = plan.shard([*cases, *trials.cases(suite, list(entries), catalogued.device, resolve)], shard)
    asked = [case for case in every if case.variant != NO_ATTENTION]
    prospects = scout.survey(asked, {name: entry.file for name, entry in entries.items()})
    return Blueprint(
        suite=suite,
        device=catalogued.device,
        settings=settings_of(suite),
        cases=[case for case in every if not isinstance(case, TrialCase)],
        trials=[case for case in every if isinstance(case, TrialCase)],
        entries=entries,
        prospects={case.key(): prospect for case, prospect in zip(asked, prospects, strict=True)},
    )


def settings_of(suite: Suite) -> Settings:
    """The settings that every record carries, all of them explicit."""
    return Settings(
        threads=suite.threads or usable_cores(),
        float32_precision=suite.float32_precision,
        time_budget_seconds=suite.time_budget_seconds,
        timeout_seconds=suite.timeout,
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
