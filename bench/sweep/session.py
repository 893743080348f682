"""One run: the records that come of it, and whether and where an earlier one can be taken up again."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import msgspec

from bench.errors import NotComparableError
from bench.fidelity.trial import NO_ATTENTION, TrialCase, TrialOutcome, TrialRecord
from bench.record import About, Host, Outcome, Record, Settings, Source, storable
from bench.sweep.blueprint import Blueprint
from bench.sweep.plan import Cell
from bench.sweep.scout import Scout
from bench.sweep.trials import NOTHING


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What all records of a run have in common. ``about`` is keyed by variant; trials have settings of their own."""

    run_id: str
    about: Mapping[str, About]
    settings: Settings
    host: Host
    source: Source
    command: str | None = None
    trial_settings: Settings | None = None

    def record(self, cell: Cell, outcome: Outcome) -> Record:
        """The record of a cell; failed if the outcome holds a number that no record may hold."""
        about = self.about[cell.case.variant]
        return storable(Record(case=cell.case, outcome=outcome, process=cell.process, about=about, **self.stamp()))

    def trial(self, case: TrialCase, outcome: TrialOutcome) -> TrialRecord:
        """The record of a trial; failed as that of a cell is."""
        about = NOTHING if case.variant == NO_ATTENTION else self.about[case.variant]
        stamp = self.stamp() | {"settings": self.trial_settings or self.settings}
        return storable(TrialRecord(case=case, outcome=outcome, about=about, **stamp))

    def stamp(self) -> dict[str, Any]:
        """What every line of the run says of it, and of now."""
        return {
            "run_id": self.run_id,
            "settings": self.settings,
            "host": self.host,
            "source": self.source,
            "command": self.command,
            "at": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        }


def with_budget_of(blueprint: Blueprint, records: Sequence[Record]) -> Blueprint:
    """The blueprint with the time budget of the run that made ``records``, unless one was given.

    What it is by default depends on how many replicates there are: to go on with more of them is no other budget.
    """
    there = records[-1].settings.time_budget_seconds if records else None
    if there is None or blueprint.suite.time_budget is not None:
        return blueprint
    return replace(
        blueprint,
        suite=msgspec.structs.replace(blueprint.suite, time_budget=there),
        settings=msgspec.structs.replace(blueprint.settings, time_budget_seconds=there),
    )


def begin(blueprint: Blueprint, scout: Scout, *, run_id: str, arguments: Sequence[str]) -> Session:
    """A new run of a blueprint here; ``arguments`` are those of the command. The scout's process ends."""
    with scout:
        probed = scout.probe(blueprint.device, blueprint.dtypes, blueprint.settings)
    return Session(
        run_id=run_id,
        about={name: entry.about for name, entry in blueprint.entries.items()},
        settings=blueprint.settings,
        trial_settings=blueprint.trial_settings,
        host=probed.host,
        source=probed.source,
        command=command_line(arguments),
    )


def new_run_id() -> str:
    """Sorts by time, and is unlike that of a run of the same second elsewhere."""
    return f"{dt.datetime.now(tz=dt.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def command_line(arguments: Sequence[str]) -> str:
    """The command as it may enter a record: of paths only the last part."""
    return " ".join(["python -m bench", *(_without_folders(argument) for argument in arguments)])


def _without_folders(argument: str) -> str:
    option, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
    is_path = PurePath(value).is_absolute() or value.endswith((".jsonl", ".toml", ".py", ".json"))
    return f"{option}{equals}{PurePath(value).name if is_path else value}"


def taken_up(session: Session, records: Sequence[Record]) -> Session:
    """The session, as the continuation of the run that made ``records``.

    Raises:
        NotComparableError: they are of several runs, or of another host, revision or settings; the message says which.

    """
    if not records:
        return session
    runs = {record.run_id for record in records}
    if len(runs) > 1:
        raise NotComparableError(f"expected the file of one run to resume, it holds {len(runs)}; give another --out")
    differences = [
        difference
        for last in {type(record): record for record in records}.values()  # cases and trials have settings of their own
        for difference in _from(session, last)
    ]
    if differences:
        told = "; ".join(dict.fromkeys(differences))
        raise NotComparableError(f"cannot resume a run of another {told}. Give another --out")
    return msgspec.structs.replace(session, run_id=records[-1].run_id)


def _from(session: Session, last: Record) -> list[str]:
    settings = (session.trial_settings if isinstance(last, TrialRecord) else None) or session.settings
    return [
        *_differences("host", _hardware(last.host), _hardware(session.host)),
        *_differences("source", msgspec.to_builtins(last.source), msgspec.to_builtins(session.source)),
        *_differences("settings", msgspec.to_builtins(last.settings), msgspec.to_builtins(settings)),
    ]


def _hardware(host: Host) -> dict[str, object]:
    return {"device": host.device_name, "fingerprint": host.fingerprint}


def _differences(what: str, before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """``source (git abc there, def here)`` where something differs."""
    differing = [
        f"{key} {before.get(key)} there, {now.get(key)} here"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]
    return [f"{what} ({', '.join(differing)})"] if differing else []


def missing(cells: Iterable[Cell], records: Iterable[Record], retry: Collection[str]) -> list[Cell]:
    """The cells without a record, and those whose record has a status to ``retry``."""
    there = {record.identity() for record in records if record.status not in retry}
    return [cell for cell in cells if (cell.case.key(), cell.process) not in there]
