"""Several machines, dates, dtypes or versions beside each other, and what of that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import groupby

from bench import wording
from bench.cells import Cell, Contender, Ground
from bench.report import markdown, trust

MOST_GROUNDS = 6  # columns of a table
_MOST_WORKLOADS = 12
_NOTHING = "–"

_MACHINE = ("device name", "device", "fingerprint")
_CODE = ("revision", "uncommitted changes", "run")


def section(gathered: Mapping[Ground, Sequence[Cell]]) -> str:
    """What differs between the first six grounds, what follows from it, and their times; empty for one alone."""
    if len(gathered) == 1:
        return ""
    numbered = dict(list(enumerate(gathered.items(), start=1))[:MOST_GROUNDS])
    grounds = {number: ground for number, (ground, _) in numbered.items()}
    parts = [_differences(grounds), _verdicts(grounds)]
    if len(gathered) > MOST_GROUNDS:
        parts.append(f"The first {MOST_GROUNDS} of {len(gathered)} parts are shown.")
    tables = _times({number: cells for number, (_, cells) in numbered.items()})
    parts += [markdown.details(title, table) for title, table in tables]
    return "\n\n".join(part for part in parts if part)


def properties(ground: Ground) -> dict[str, str]:
    """Everything that makes a ground, by name."""
    versions = {f"version of {name}": version for name, version in ground.versions}
    settings = {
        name.replace("_", " "): str(value)
        for name in ground.settings.__struct_fields__
        if (value := getattr(ground.settings, name)) is not None
    }
    plain = {
        field.name.replace("_", " "): str(value)
        for field in fields(ground)
        if field.name not in ("settings", "versions", "git", "dirty", "run_id")
        and (value := getattr(ground, field.name)) is not None
    }
    return {**plain, **settings, "revision": trust.revision(ground), "run": ground.run_id or "", **versions}


def _differences(grounds: Mapping[int, Ground]) -> str:
    """Names down, grounds across; what is the same in all is left out."""
    told = {number: properties(ground) for number, ground in grounds.items()}
    names = list(dict.fromkeys(name for properties in told.values() for name in properties))
    rows = []
    for name in names:
        values = [properties.get(name, "") for properties in told.values()]
        if len(set(values)) > 1:
            rows.append([name, *(markdown.text(value) or _NOTHING for value in values)])
    return markdown.table(["what differs", *map(str, grounds)], rows, left=1 + len(grounds))


def _verdicts(grounds: Mapping[int, Ground]) -> str:
    """Of each against the first: may their times be compared, and what would a difference be of?"""
    (first, base), *others = grounds.items()
    lines = [
        f"- {number} against {first}: {comparability(properties(base), properties(ground))}"
        for number, ground in others
    ]
    return "\n".join(lines)


def comparability(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """What a difference in time between two grounds means, if anything."""
    differing = [name for name in {**one, **other} if one.get(name, "") != other.get(name, "")]
    machine = [name for name in differing if name in _MACHINE]
    code = [name for name in differing if name in _CODE or name.startswith("version of ")]
    rest = [name for name in differing if name not in machine and name not in code]
    if machine:
        more = f", another {wording.listed(rest)}" if rest else ""
        more += ", and the code differs as well" if code else ""
        return (
            f"**cannot be compared**: another machine{more}. Compare which variant wins on each, and by how "
            "many times, not seconds."
        )
    if rest and code:
        return f"**cannot be compared**: {wording.listed(rest)} differ, and so does the code."
    if rest:
        return f"same machine and code; a difference is what {wording.listed(rest)} cost{'s' * (len(rest) == 1)}."
    return f"same machine, shape and settings; a difference beyond noise is due to {wording.listed(code)}."


def _times(cells: Mapping[int, Sequence[Cell]]) -> Iterable[tuple[str, str]]:
    """Times at the longest length that two grounds share, by mask and mode."""
    workloads: dict[tuple[str, str], dict[int, list[Cell]]] = {}
    for number, members in cells.items():
        for workload, group in groupby(members, key=lambda cell: (cell.mask, cell.mode)):
            workloads.setdefault(workload, {})[number] = [cell for cell in group if cell.seconds]
    for (mask, mode), by_number in list(workloads.items())[:_MOST_WORKLOADS]:
        length = _shared_length(by_number.values())
        if length is None:
            continue
        rows: dict[str, tuple[Contender, dict[int, str]]] = {}
        for number, members in by_number.items():
            for cell in members:
                if cell.length == length and cell.seconds:
                    label = cell.contender.label
                    rows.setdefault(label, (cell.contender, {}))[1][number] = wording.time(cell.seconds)
        ordered = sorted(rows.items(), key=lambda row: row[1][0].order)
        table = markdown.table(
            ["median time", *map(str, cells)],
            [[markdown.code(label), *(row.get(number, _NOTHING) for number in cells)] for label, (_, row) in ordered],
        )
        yield f"Times beside each other: {mask}, {mode}, {wording.length(length)}", table


def _shared_length(groups: Iterable[Sequence[Cell]]) -> int | None:
    counts: dict[int, int] = {}
    for members in groups:
        for length in {cell.length for cell in members}:
            counts[length] = counts.get(length, 0) + 1
    shared = [length for length, count in counts.items() if count > 1]
    return max(shared, default=None)
