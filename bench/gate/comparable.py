"""Whether two runs may be compared at all: the same machine, settings and library versions, unless allowed by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from bench import wording
from bench.errors import NotComparableError, WrongUsageError, unknown
from bench.record import Record, Settings
from bench.store import Reading

HOST, SETTINGS, VERSIONS = "host", "settings", "versions"
DAMAGED, KINDS, INCOMPLETE = "damaged", "kinds", "incomplete"
_GROUPS = (HOST, SETTINGS, VERSIONS, DAMAGED, KINDS, INCOMPLETE)
_HOST_FIELDS = ("fingerprint", "device_name")
OURS = "attention-bench"  # the version of what is compared, in its own repository

_Facts = Mapping[str, object]


def check_allowed(names: Collection[str]) -> None:
    """Whether each name is of something that may be allowed to differ.

    Raises:
        WrongUsageError: one is not; the message names the nearest.

    """
    fields = [f"{SETTINGS}.{name}" for name in Settings.__struct_fields__]
    for name in names:
        if name not in (*_GROUPS, *fields) and not (name.startswith(f"{VERSIONS}.") and name != f"{VERSIONS}."):
            raise unknown("--allow", name, [*_GROUPS, *fields, f"{VERSIONS}.torch"])


def check(base: Sequence[Record], head: Sequence[Record], allowed: Collection[str] = ()) -> list[str]:
    """The differences that were allowed, one sentence each.

    Raises:
        NotComparableError: one that was not, or a side that does not agree with itself; every one is named.

    """
    for name, records in (("base", base), ("head", head)):
        _check_one(name, records, allowed)
    return _compare(_facts(base[0]), _facts(head[0]), allowed, "base", "head")


def _check_one(name: str, records: Sequence[Record], allowed: Collection[str]) -> None:
    first = _facts(records[0])
    for record in {(id(one.host), id(one.settings), id(one.source)): one for one in records}.values():
        _compare(first, _facts(record), allowed, f"one record of {name}", "another")


def _facts(record: Record) -> _Facts:
    """Everything that must be equal, under the name by which it may be allowed to differ."""
    versions = {name: version for name, version in record.source.versions.items() if name != OURS}
    return {
        **{f"{HOST}.{name}": getattr(record.host, name) for name in _HOST_FIELDS},
        **{f"{SETTINGS}.{name}": value for name, value in msgspec.to_builtins(record.settings).items()},
        **{f"{VERSIONS}.{name}": version for name, version in versions.items()},
    }


def _compare(one: _Facts, other: _Facts, allowed: Collection[str], this: str, that: str) -> list[str]:
    differences = {
        name: f"{name} {one.get(name)} in {this}, {other.get(name)} in {that}"
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    }
    refused = {name: said for name, said in differences.items() if not _is_allowed(name, allowed)}
    if refused:
        groups = dict.fromkeys(name.partition(".")[0] for name in refused)
        raise NotComparableError(
            f"expected runs of the same {', '.join(groups)}: {'; '.join(refused.values())}. Measure both alike, or "
            "give " + " ".join(f"--allow {group}" for group in groups)
        )
    return [f"allowed to differ: {said}" for said in differences.values()]


def _is_allowed(name: str, allowed: Collection[str]) -> bool:
    return name in allowed or name.partition(".")[0] in allowed


def check_reading(reading: Reading, name: str, allowed: Collection[str] = ()) -> list[str]:
    """What a file holds besides its records, if that was allowed: a case in it would go uncompared.

    Raises:
        NotComparableError: lines that cannot be read, or of kinds that this version does not know.

    """
    notes = [*_unread(reading, name)]
    for group, said in notes:
        if group not in allowed:
            raise NotComparableError(
                f"{said}; what stands there would not be compared. Mend it, or give --allow {group}"
            )
    return [said for _, said in notes]


def _unread(reading: Reading, name: str) -> Iterator[tuple[str, str]]:
    if reading.problems:
        yield (
            DAMAGED,
            f"{name} has {wording.counted(len(reading.problems), 'unreadable line')}, the first: {reading.problems[0]}",
        )
    for kind, count in reading.skipped.items():
        yield KINDS, f"{name} has {wording.counted(count, 'record')} of the unknown kind {kind!r}"


def check_complete(records: Sequence[Record], name: str, allowed: Collection[str] = ()) -> list[str]:
    """Whether every process of a run met every case of it, as one that was not interrupted does.

    Raises:
        NotComparableError: some did not, and that was not allowed.

    """
    processes: dict[str, set[int]] = defaultdict(set)
    met: dict[tuple[str, str], set[int]] = defaultdict(set)
    for record in records:
        processes[record.run_id].add(record.process)
        met[record.run_id, record.case.key()].add(record.process)
    lacking = sum(len(processes[run_id]) - len(found) for (run_id, _), found in met.items())
    if not lacking:
        return []
    said = f"{name} is not complete: {wording.counted(lacking, 'result')} of single processes missing"
    if INCOMPLETE not in allowed:
        raise NotComparableError(f"{said}. Measure them with 'run --resume', or give --allow {INCOMPLETE}")
    return [said]


def parse_allowed(texts: Sequence[str]) -> frozenset[str]:
    """Of options that may hold lists.

    Raises:
        WrongUsageError: see :func:`check_allowed`.

    """
    names = frozenset(part.strip() for text in texts for part in text.split(",") if part.strip())
    if texts and not names:
        raise WrongUsageError(f"--allow: expected some of {', '.join(_GROUPS)}, got nothing")
    check_allowed(names)
    return names
