"""What is measured on which side: the cases that a suite means there, and what all records of a side share.

A variant or a parameter that only one side has is no mistake: its cases are there on one side only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from bench.ab.sides import Side
from bench.errors import WrongUsageError
from bench.record import Case, Settings, Source, Unsupported
from bench.sweep import plan, session
from bench.sweep.blueprint import settings_of
from bench.sweep.messages import Entry
from bench.sweep.scout import Scout
from bench.sweep.session import Session
from bench.sweep.suite import Suite

_T = TypeVar("_T")

# Short, since there are many processes; on CUDA the clocks of the device take a while to settle.
LOOK_SECONDS = {"cpu": 0.1, "cuda": 0.6}


@dataclass(frozen=True, slots=True)
class Scope:
    """One side of a job. ``unsupported``: the reasons of cases that it cannot honour, by key."""

    side: Side
    device: str
    session: Session
    cases: Mapping[str, Case]
    unsupported: Mapping[str, Unsupported]

    @property
    def able(self) -> list[Case]:
        """The cases to be measured."""
        return [case for key, case in self.cases.items() if key not in self.unsupported]


def explore(
    sides: Sequence[Side],
    suite: Suite,
    *,
    run_id: str,
    arguments: Sequence[str],
    look_seconds: float | None = None,
    shard: str | None = None,
    files_only: bool = False,
) -> list[Scope]:
    """The scope of each side. ``look_seconds``: of timing a case in one process; by the device if nobody says.

    ``files_only``: only variants of files, since those that come with the harness are the same on both sides.

    Raises:
        WrongUsageError: something cannot be used on a side, which the message names.

    """
    if not suite.sweeps:
        raise WrongUsageError("expected a suite with [[sweep]] tables, got one of trials alone, which take no turns")
    settings = settings_of(suite)

    def settings_for(device: str) -> Settings:
        by_device = LOOK_SECONDS[device.partition(":")[0]]
        return msgspec.structs.replace(settings, time_budget_seconds=look_seconds or by_device)

    with ExitStack() as stack:
        views = [
            _View.of(
                side,
                stack.enter_context(Scout(engine=side.engine, threads=settings.threads, home=side.home)),
                suite.device,
                files_only=files_only,
            )
            for side in sides
        ]
        names = list(dict.fromkeys(name for view in views for name in view.entries))
        if not names:
            raise WrongUsageError("expected a variant file that one of the revisions has, and none has any of them")
        return [
            view.scope(
                suite, names, settings_for(view.device), shard, run_id=f"{run_id}-{view.side.name}", arguments=arguments
            )
            for view in views
        ]


@dataclass(frozen=True, slots=True)
class _View:
    """What a side's variants are, by name, and whom to ask about them."""

    side: Side
    scout: Scout
    device: str
    entries: Mapping[str, Entry]

    @staticmethod
    def of(side: Side, scout: Scout, device: str, *, files_only: bool) -> _View:
        catalogued = _named(side, partial(scout.catalogue, side.variant_files, device))
        entries = {entry.name: entry for entry in catalogued.entries if entry.file or not files_only}
        return _View(side, scout, catalogued.device, entries)

    def scope(
        self,
        suite: Suite,
        names: Sequence[str],
        settings: Settings,
        shard: str | None,
        *,
        run_id: str,
        arguments: Sequence[str],
    ) -> Scope:
        """Everything else. ``names``: of the variants that any side has."""
        cases = self.cases(suite, names, shard)
        files = {name: entry.file for name, entry in self.entries.items()}
        prospects = self.scout.survey(cases, files)
        probed = self.scout.probe(self.device, (), settings)
        source = probed.source
        if self.side.revision is not None:
            source = Source(git=self.side.revision, dirty=False, versions=source.versions)
        return Scope(
            side=replace(self.side, files=files),
            device=self.device,
            session=Session(
                run_id=run_id,
                about={name: entry.about for name, entry in self.entries.items()},
                settings=settings,
                host=msgspec.structs.replace(probed.host, ceilings={}),  # no roofline here
                source=source,
                command=session.command_line(arguments),
            ),
            cases={case.key(): case for case in cases},
            unsupported={
                case.key(): Unsupported(reasons=prospect.reasons)
                for case, prospect in zip(cases, prospects, strict=True)
                if prospect.reasons
            },
        )

    def cases(self, suite: Suite, names: Sequence[str], shard: str | None) -> list[Case]:
        """The suite's cases of variants that the side has. All sides go through all names, lest shards differ."""

        def resolved(variant: str, given: dict[str, Any]) -> dict[str, Any]:
            known = self.entries.get(variant)
            return {} if known is None else self.scout.resolve(variant, known.file, given)

        every = _named(self.side, lambda: plan.cases(suite, names, self.device, resolved))
        return [case for case in plan.shard(every, shard) if case.variant in self.entries]


def _named(side: Side, ask: Callable[[], _T]) -> _T:
    try:
        return ask()
    except WrongUsageError as error:
        raise WrongUsageError(f"{side.name}: {error}") from error
