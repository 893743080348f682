"""Runs that are kept to compare with: ``ROOT/FINGERPRINT/NAME.jsonl``, per machine and name.

Several runs may stand in one, made at different times of the same code: what they differ by is the noise that a run of
head has to clear.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import store
from bench.errors import NotComparableError, WrongUsageError, unknown
from bench.gate import comparable
from bench.record import Host, Record
from bench.store import Reading

ROOT = Path("results/baselines")
MAIN = "main"
_NAME = re.compile(r"[\w][\w.+-]*")


@dataclass(frozen=True, slots=True)
class Baseline:
    """A stored baseline. ``reading`` is what its file holds."""

    name: str
    path: Path
    reading: Reading

    @property
    def host(self) -> Host:
        return self.reading.records[0].host

    @property
    def runs(self) -> list[str]:
        return list(dict.fromkeys(record.run_id for record in self.reading.records))

    @property
    def cases(self) -> int:
        return len({record.case.key() for record in self.reading.records})

    @property
    def processes(self) -> int:
        """Of all runs together."""
        return len({(record.run_id, record.process) for record in self.reading.records})

    @property
    def revisions(self) -> list[str]:
        """Short, in order of appearance; a star marks uncommitted changes."""
        return list(dict.fromkeys(revision(record) for record in self.reading.records))

    @property
    def at(self) -> str:
        """When the last record was made."""
        return max((record.at or "" for record in self.reading.records), default="")


def revision(record: Record) -> str:
    """The first digits of the commit; a star where there were uncommitted changes."""
    return (record.source.git or "unknown")[:10] + ("*" if record.source.dirty else "")


def save(reading: Reading, *, name: str = MAIN, root: Path = ROOT, add: bool = False, replace: bool = False) -> Path:
    """Keep a run for its host.

    ``add`` puts it beside the runs that are there; ``replace`` puts it in their stead.

    Raises:
        WrongUsageError: an unusable name; or a baseline exists and neither ``add`` nor ``replace`` is given.
        NotComparableError: records of several hosts or settings, nothing measured, or, with ``add``, of others than
            those that are there.

    """
    if not _NAME.fullmatch(name):
        raise WrongUsageError(f"--name: expected letters, digits, '.', '-' and '_', got {name!r}")
    records = reading.records
    if all(record.status != "measured" for record in records):
        raise NotComparableError("nothing was measured in this run, so there is nothing to compare with; not saved")
    comparable.check(records, records)
    path = root / records[0].host.fingerprint / f"{name}.jsonl"
    if path.exists() and not (add or replace):
        raise WrongUsageError(
            f"{path} exists: put the run beside it with --add, in its stead with --replace, or give another --name"
        )
    kept = store.read(path).records if path.exists() and add else []
    if kept:
        comparable.check(kept, records)
    replacement = path.with_name(f".{path.name}.new")
    replacement.unlink(missing_ok=True)
    with store.Appender(replacement) as appender:
        appender.append(*kept, *records)
    replacement.replace(path)
    return path


def find(root: Path = ROOT) -> list[Baseline]:
    """All that are kept, by host and name."""
    paths = sorted(root.glob("*/*.jsonl"))
    return [Baseline(path.stem, path, store.read(path)) for path in paths if not path.name.startswith(".")]


def of_host(fingerprint: str, *, name: str = MAIN, root: Path = ROOT) -> Baseline:
    """The baseline of a machine.

    Raises:
        NotComparableError: it has none; the message says which machines have.
        WrongUsageError: it has others, but none of this name.

    """
    path = root / fingerprint / f"{name}.jsonl"
    if path.exists():
        return Baseline(name, path, store.read(path))
    everything = find(root)
    here = [baseline.name for baseline in everything if baseline.path.parent.name == fingerprint]
    if here:
        raise unknown("baseline", name, here)
    hosts = {one.path.parent.name: f"{one.path.parent.name} ({one.host.device_name})" for one in everything}
    known = f"there are some for: {', '.join(hosts.values())}" if hosts else "there are none at all"
    raise NotComparableError(
        f"expected a baseline for host {fingerprint} in {root}, {known}. Make one there with 'baseline save RUN.jsonl'"
    )


def medians(baseline: Baseline) -> dict[str, list[float]]:
    """By case, the median seconds of every process that measured it."""
    found: dict[str, list[float]] = {}
    for record in baseline.reading.records:
        seconds: Sequence[float] = getattr(record.outcome, "seconds", ())
        if seconds:
            found.setdefault(record.case.key(), []).append(statistics.median(seconds))
    return found
