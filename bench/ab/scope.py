"""What is measured on which side: the cases that a suite means there, and what all records of a side share.

A variant or a parameter that only one side has is no mistake: its cases are there on one side only. What the first
side can load and another cannot is none either: those cases failed there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from bench.ab.sides import Side
from bench.errors import WrongUsageError
from bench.record import Case, Failed, Settings, Source, Unsupported
from bench.sweep import plan, session
from bench.sweep.blueprint import settings_of
from bench.sweep.messages import Catalogued, Entry, Probed
from bench.sweep.scout import Scout
from bench.sweep.session import Session
from bench.sweep.suite import Suite

_T = TypeVar("_T")
_SHORT = 10  # digits of a revision

# Short, since there are many processes; on CUDA the clocks of the device take a while to settle.
LOOK_SECONDS = {"cpu": 0.1, "cuda": 0.6}


@dataclass(frozen=True, slots=True)
class Scope:
    """One side of a job. ``foregone``: what becomes of the cases that it cannot honour or not even load, by key."""

    side: Side
    device: str
    session: Session
    cases: Mapping[str, Case]
    foregone: Mapping[str, Unsupported | Failed]

    @property
    def able(self) -> list[Case]:
        """The cases to be measured."""
        return [case for key, case in self.cases.items() if key not in self.foregone]


def explore(
    sides: Sequence[Side],
    suite: Suite,
    *,
    run_id: str,
    arguments: Sequence[str],
    shard: str | None = None,
    files_only: bool = False,
) -> list[Scope]:
    """The scope of each side. What timing a case in one process takes is by the device, unless the suite says it.

    ``files_only``: only variants of files, since those that come with the harness are the same on both sides.

    Raises:
        WrongUsageError: something cannot be used on a side, which the message names.

    """
    if not suite.sweeps:
        raise WrongUsageError("expected a suite with [[sweep]] tables, got one of trials alone, which take no turns")
    settings = settings_of(suite)

    def settings_for(device: str) -> Settings:
        by_device = LOOK_SECONDS[device.partition(":")[0]]
        return msgspec.structs.replace(settings, time_budget_seconds=suite.time_budget or by_device)

    with ExitStack() as stack:
        views: list[_View] = []
        for side in sides:
            scouting = Scout(
                engine=side.engine, threads=settings.threads, home=side.home, timeout_seconds=suite.timeout
            )
            scout = stack.enter_context(scouting)
            first = views[0] if views else None
            views.append(_View.of(side, scout, suite.device, files_only=files_only, first=first))
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
    """What a side's variants are, by name, and whom to ask about them.

    ``lost``: why each variant that the ``first`` side has cannot be loaded here, by name.
    """

    side: Side
    scout: Scout
    device: str
    entries: Mapping[str, Entry]
    lost: Mapping[str, str] = field(default_factory=dict)
    first: _View | None = None

    @staticmethod
    def of(side: Side, scout: Scout, device: str, *, files_only: bool, first: _View | None = None) -> _View:
        def loaded(files: Sequence[str]) -> Catalogued:
            return _named(side, partial(scout.catalogue, files, device))

        lost: dict[str, str] = {}
        try:
            catalogued = loaded(side.variant_files)
        except WrongUsageError:
            if first is None or not (lost := _lost(side, first, loaded)):
                raise
            left = [file for file in side.variant_files if file not in _files_of(lost, side, first)]
            device = first.device
            catalogued = Catalogued(entries=[], device=device) if lost.keys() == first.entries.keys() else loaded(left)
        entries = {entry.name: entry for entry in catalogued.entries if entry.file or not files_only}
        return _View(side, scout, catalogued.device, entries, lost, first)

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
        here = [case for case in cases if case.variant in self.entries]
        prospects = self.scout.survey(here, files)
        probed = self._probed(settings)
        source = probed.source
        if self.side.revision is not None:
            source = Source(git=self.side.revision, dirty=False, versions=source.versions)
        return Scope(
            side=replace(self.side, files=files),
            device=self.device,
            session=Session(
                run_id=run_id,
                about={name: entry.about for name, entry in self._known.items()},
                settings=settings,
                host=msgspec.structs.replace(probed.host, ceilings={}),  # no roofline here
                source=source,
                command=session.command_line(arguments),
            ),
            cases={case.key(): case for case in cases},
            foregone={
                **{
                    case.key(): Unsupported(reasons=prospect.reasons)
                    for case, prospect in zip(here, prospects, strict=True)
                    if prospect.reasons
                },
                **{
                    case.key(): Failed(stage="start", message=self.lost[case.variant])
                    for case in cases
                    if case.variant in self.lost
                },
            },
        )

    @property
    def _known(self) -> Mapping[str, Entry]:
        """The variants that have cases here, also those that cannot be loaded."""
        return {**{name: self.first.entries[name] for name in self.lost if self.first}, **self.entries}

    def _probed(self, settings: Settings) -> Probed:
        """The machine is the same for all sides; where nothing can be loaded here, the first one is asked."""
        asked = self.first if self.first and not self.entries else self
        return asked.scout.probe(self.device, (), settings)

    def cases(self, suite: Suite, names: Sequence[str], shard: str | None) -> list[Case]:
        """The suite's cases of variants that the side has. All sides go through all names, lest shards differ."""

        def resolved(variant: str, given: dict[str, Any]) -> dict[str, Any]:
            if variant in self.lost and self.first:
                return self.first.scout.resolve(variant, self.first.entries[variant].file, given)
            known = self.entries.get(variant)
            return {} if known is None else self.scout.resolve(variant, known.file, given)

        every = _named(self.side, lambda: plan.cases(suite, names, self.device, resolved))
        return [case for case in plan.shard(every, shard) if case.variant in self._known]


def _lost(side: Side, first: _View, loaded: Callable[[Sequence[str]], Catalogued]) -> dict[str, str]:
    """Why each variant of the first side cannot be loaded on this one, where that is so."""

    def why_not(files: Sequence[str]) -> str | None:
        try:
            loaded(files)
        except WrongUsageError as error:
            return str(error)
        return None

    nothing = why_not([])
    if nothing is not None:  # not even what is built in
        return dict.fromkeys(first.entries, nothing)
    files = {name: side.counterpart(entry.file, first.side) for name, entry in first.entries.items() if entry.file}
    asked = {name: why_not([file]) for name, file in files.items() if file in side.variant_files}
    return {name: why for name, why in asked.items() if why is not None}


def _files_of(names: Collection[str], side: Side, first: _View) -> list[str]:
    return [side.counterpart(entry.file, first.side) for name in names if (entry := first.entries[name]).file]


def _named(side: Side, ask: Callable[[], _T]) -> _T:
    """Whose mistake it is, and in which file of the repository: the work tree is gone when somebody reads it."""
    try:
        return ask()
    except WrongUsageError as error:
        revision = f" ({side.revision[:_SHORT]})" if side.revision else ""
        raise WrongUsageError(f"{side.name}{revision}: {side.told(str(error))}") from error
