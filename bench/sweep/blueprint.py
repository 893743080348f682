"""A sweep before it runs: its cases with what is known of each, on this machine, under these settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.fidelity import fits
from bench.record import Case, Settings, Unsupported
from bench.sweep import plan
from bench.sweep.messages import Entry, Prospect
from bench.sweep.plan import Cell
from bench.sweep.scout import Scout
from bench.sweep.suite import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Cases in order; ``prospects`` by the key of a case, ``entries`` by the name of a variant."""

    suite: Suite
    device: str
    settings: Settings
    cases: list[Case]
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

    def unsupported(self, case: Case) -> Unsupported | None:
        """The outcome of a case that its variant says it cannot honour, or whose inputs cannot be had."""
        reasons = [*self.prospects[case.key()].reasons, *fits.obstacles(case.workload)]
        return Unsupported(reasons=reasons) if reasons else None


def draw_up(scout: Scout, suite: Suite, *, variant_files: Sequence[str], shard: str | None) -> Blueprint:
    """Work out what a suite means here.

    Raises:
        WrongUsageError: something in it, in the options or in a variant file cannot be used.

    """
    catalogued = scout.catalogue(variant_files, suite.device)
    entries = {entry.name: entry for entry in catalogued.entries}
    every = plan.cases(
        suite,
        list(entries),
        catalogued.device,
        lambda variant, given: scout.resolve(variant, entries[variant].file, given),
    )
    cases = plan.shard(every, shard)
    files = {name: entry.file for name, entry in entries.items()}
    prospects = scout.survey(cases, files)
    return Blueprint(
        suite=suite,
        device=catalogued.device,
        settings=settings_of(suite),
        cases=cases,
        entries=entries,
        prospects={case.key(): prospect for case, prospect in zip(cases, prospects, strict=True)},
    )


def settings_of(suite: Suite) -> Settings:
    """The settings that every record carries, all of them explicit."""
    return Settings(
        threads=suite.threads or usable_cores(),
        float32_precision=suite.float32_precision,
        time_budget_seconds=suite.time_budget,
        timeout_seconds=suite.timeout,
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
