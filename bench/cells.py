"""From records to cells: what every process found of one case, gathered, on ground that they share.

Figures may be compared only where all but the variant, the mask, the mode and the length is equal: the machine, the
settings, the revision and versions, and every other dimension of the problem. That is a :class:`Ground`, and every
table and picture stands on one.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Any, cast

import numpy as np

from bench import stats
from bench.fidelity.sources import kind_of
from bench.record import About, Host, Measured, Outcome, Record, Settings, Source, Status, Unsupported
from variants._contract import MODES, Claim, Workload

FLOOR = "floor"
_FAMILIES = ("exact", "sparse", "low_rank", "hashing", "kernel", "recurrent", "positional", "scoring", FLOOR)

# What a case is where its processes disagree: the first of these that any of them came to.
SEVEREST: tuple[Status, ...] = (
    "incorrect",
    "fell_back",
    "failed",
    "crashed",
    "timeout",
    "out_of_memory",
    "unsupported",
    "measured",
)


@dataclass(frozen=True, slots=True)
class Ground:
    """What figures must share to stand beside each other.

    ``queries`` and ``keys`` are None where that length is the one that varies; both are where they are equal.
    ``run_id`` is None unless the code had uncommitted changes, of which nobody can say that two runs had the same.
    """

    kind: str
    fingerprint: str
    device_name: str
    device: str
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int | None
    scale: float | None
    inputs: str
    seed: int
    settings: Settings
    git: str | None
    dirty: bool | None
    versions: tuple[tuple[str, str], ...]
    run_id: str | None
    queries: int | None = None
    keys: int | None = None

    def length(self, workload: Workload) -> int:
        """The length that varies on this ground."""
        return workload.query_length if self.queries is None else workload.key_length


@dataclass(frozen=True, slots=True)
class Contender:
    """A variant with its parameters. ``label`` names the parameters only where the variant has several sets of them.

    ``sibling`` counts those sets from 0. ``leaks``: under a causal mask, keys to come can move its choices.
    """

    label: str
    variant: str
    parameters: str
    family: str
    exact: bool
    time_exponent: float | None
    memory_exponent: float | None
    summary: str = ""
    paper: str | None = None
    leaks: bool = False
    sibling: int = 0
    claims: tuple[Claim, ...] = field(default=(), compare=False)

    @property
    def is_floor(self) -> bool:
        """Not to be recommended: it shows what doing nothing costs and gives."""
        return self.family == FLOOR

    @property
    def order(self) -> tuple[bool, int, str, int]:
        """Exact ones first, then by family and name."""
        family = _FAMILIES.index(self.family) if self.family in _FAMILIES else len(_FAMILIES)
        return not self.exact, family, self.variant, self.sibling


@dataclass(frozen=True, eq=False)
class Cell:
    """One case on a ground, with the records of all processes that met it."""

    ground: Ground
    contender: Contender
    mask: str
    mode: str
    length: int
    records: Sequence[Record] = field(repr=False)

    @property
    def workload(self) -> Workload:
        return self.records[0].case.workload

    @cached_property
    def outcomes(self) -> Sequence[Outcome]:
        """By process."""
        return [record.outcome for record in self.records]

    @cached_property
    def status(self) -> Status:
        """``measured`` only if every process measured it: a missing figure beats a wrong one."""
        of_each_kind = {type(record.outcome): record for record in self.records}.values()
        return min((record.status for record in of_each_kind), key=SEVEREST.index)

    @property
    def measured(self) -> Sequence[Measured]:
        """The outcomes, if the case counts as measured."""
        return cast("Sequence[Measured]", self.outcomes) if self.status == "measured" else ()

    @cached_property
    def samples(self) -> stats.Samples:
        """Seconds per block, by run and process; empty where nothing was timed."""
        return stats.Samples(
            {
                _process(record.run_id, record.process): outcome.seconds
                for record, outcome in zip(self.records, self.measured, strict=False)  # none, or of every record
                if outcome.seconds
            }
        )

    @cached_property
    def seconds(self) -> stats.Estimate | None:
        return stats.median(self.samples) if self.samples else None

    @property
    def peak_bytes(self) -> int | None:
        """The highest over processes."""
        return cast("int | None", self.figures["peak_bytes"])

    @property
    def relative_error(self) -> float | None:
        """Of the output against exact attention: the highest over processes."""
        return self.figures["relative_error"]

    @property
    def cosine(self) -> float | None:
        """Between the output and exact attention: the lowest over processes."""
        return self.figures["cosine"]

    @cached_property
    def figures(self) -> Mapping[str, float | None]:
        """Over processes, of each size and error the largest, of each time and share the median; None without any.

        There may be a million outcomes in all, so that they are gone through but once.
        """
        columns = _columns(_OF_OUTCOME, self.measured)
        columns |= _columns(_OF_FIDELITY, columns.pop("fidelity"))
        columns |= {name: [statistics.median(series) for series in columns[name] if series] for name in _SERIES}
        largest = {name: max(columns[name], default=None) for name in _LARGEST}
        least = {name: min(columns[name], default=None) for name in _LEAST}
        return largest | least | {name: _median(columns[name]) for name in _MIDDLE}

    def middle(self, figure: Callable[[Measured], float | None]) -> float | None:
        """The median over processes of another number of the outcome, None where no process has it."""
        return _median([value for value in map(figure, self.measured) if value is not None])

    def reasons(self) -> list[tuple[Status, str, str]]:
        """Why there is no figure: status, stage and reason, each once; empty where there is one."""
        if self.status == "measured":
            return []
        found: dict[tuple[Status, str, str], None] = {}
        for record in self.records:
            match record.outcome:
                case Measured():
                    continue
                case Unsupported(reasons=reasons):
                    found.update(
                        dict.fromkeys((record.status, "", reason) for reason in reasons or ["no reason given"])
                    )
                case outcome:
                    found.setdefault((record.status, outcome.stage, outcome.message))
        return list(found)


_SIZES = ("peak_bytes", "output_bytes", "saved_bytes", "workspace_bytes", "reserved_bytes")
_WORK = ("useful_flops", "issued_flops")
_ERRORS = ("own_error", "tolerance", "gradient_error", "gradient_tolerance")
_ONCE = ("setup_seconds", "compile_seconds", "first_call_seconds")
_SERIES = ("seconds_warm", "seconds_graph")  # of these, the median of the medians
_OF_OUTCOME = (*_SIZES, *_WORK, *_ERRORS, *_ONCE, *_SERIES, "roofline_fraction", "fidelity")
_OF_FIDELITY = ("relative_error", "cosine", "density")
_LARGEST, _LEAST = (*_SIZES, *_WORK, *_ERRORS, "relative_error"), ("cosine",)
_MIDDLE = (*_ONCE, *_SERIES, "roofline_fraction", "density")


def _columns(names: Sequence[str], of: Sequence[Any]) -> dict[str, list[Any]]:
    """The values of each attribute, without None."""
    columns = zip(*map(attrgetter(*names), of), strict=True) if of else repeat((), len(names))
    return {name: [value for value in column if value is not None] for name, column in zip(names, columns, strict=True)}


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


@lru_cache(maxsize=1 << 16)
def _process(run_id: str, process: int) -> tuple[str, int]:
    """The same object each time: a process meets many cells."""
    return run_id, process


def gather(records: Iterable[Record]) -> dict[Ground, list[Cell]]:
    """The cells of each ground, ordered by mask, mode, contender and length.

    Grounds in order of appearance, but for inputs and seed: real inputs come first, N(0, 1) last, and after all of them
    what repeats them with further seeds.
    """
    grounds: dict[Ground, list[_Alike]] = defaultdict(list)
    bare = _Grounds()
    alike = _alike(records)
    for group in alike:
        grounds[bare(group[0])].append(group)
    contenders = _contenders(group[0] for group in alike)
    gathered: dict[Ground, list[Cell]] = {}
    for ground, found in grounds.items():
        for axis, members in _along_axes(ground, found).items():
            gathered[axis] = _cells(axis, members, contenders)
    again = repeats(gathered)
    return {
        ground: gathered[ground]
        for ground in sorted(gathered, key=lambda one: (one in again, _made_up(one.inputs), one.seed))
    }


def repeats(grounds: Collection[Ground]) -> set[Ground]:
    """Those that differ from another one in nothing but a higher seed."""
    least: dict[Ground, int] = {}
    for ground in grounds:
        bare = replace(ground, seed=0)
        least[bare] = min(least.get(bare, ground.seed), ground.seed)
    return {ground for ground in grounds if ground.seed > least[replace(ground, seed=0)]}


def _made_up(inputs: str) -> int:
    return {"normal": 2, "matched": 1}.get(kind_of(inputs), 0)


_Alike = list[Record]  # of one run, that share the very objects that say what they are of: only the first is looked at


def _alike(records: Iterable[Record]) -> list[_Alike]:
    """Records by what they are of, as far as the reader of a file shared it among them."""
    found: dict[tuple[int, int, int, int, str], _Alike] = defaultdict(list)
    for record in records:
        key = id(record.case), id(record.settings), id(record.host), id(record.source), record.run_id
        found[key].append(record)
    return list(found.values())


class _Grounds:
    """Grounds of records, before their lengths are looked at. A source is described once, since many share one."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[Source, tuple[tuple[str, str], ...]]] = {}

    def __call__(self, record: Record) -> Ground:
        workload, host, source = record.case.workload, record.host, record.source
        return Ground(
            kind=record.case.kind,
            fingerprint=host.fingerprint,
            device_name=host.device_name,
            device=workload.device,
            dtype=workload.dtype,
            batch=workload.batch,
            heads=workload.heads,
            kv_heads=workload.kv_heads,
            head_dim=workload.head_dim,
            value_head_dim=workload.value_head_dim,
            scale=workload.scale,
            inputs=workload.inputs,
            seed=workload.seed,
            settings=record.settings,
            git=source.git,
            dirty=source.dirty,
            versions=self._of(source),
            run_id=record.run_id if source.dirty else None,
        )

    def _of(self, source: Source) -> tuple[tuple[str, str], ...]:
        """Kept with the source itself, so that its id is not given to another."""
        if id(source) not in self._versions:
            self._versions[id(source)] = source, tuple(sorted(source.versions.items()))
        return self._versions[id(source)][1]


def _along_axes(ground: Ground, groups: Sequence[_Alike]) -> dict[Ground, list[_Alike]]:
    """Grounds on which one length varies: both together, or one with the other fixed."""
    workloads = [group[0].case.workload for group in groups]
    shapes = {(workload.query_length, workload.key_length) for workload in workloads}
    uneven = {(queries, keys) for queries, keys in shapes if queries != keys}
    one_line = bool(uneven) and 1 in (len({queries for queries, _ in shapes}), len({keys for _, keys in shapes}))
    looked_at = shapes if one_line else uneven
    fix_queries = len({queries for queries, _ in looked_at}) <= len({keys for _, keys in looked_at})
    found: dict[Ground, list[_Alike]] = defaultdict(list)
    for workload, group in zip(workloads, groups, strict=True):
        if workload.is_square and not one_line:
            found[ground].append(group)
        elif fix_queries:
            found[replace(ground, queries=workload.query_length)].append(group)
        else:
            found[replace(ground, keys=workload.key_length)].append(group)
    return found


def _contenders(records: Iterable[Record]) -> dict[tuple[str, str], Contender]:
    """Contenders by variant and parameters as text."""
    about: dict[str, About] = {}
    parameters: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for record in records:
        about.setdefault(record.case.variant, record.about)
        parameters[record.case.variant][_text(record.case.parameters)] = record.case.parameters
    contenders = {}
    for variant, sets in parameters.items():
        names = [name for name in _names(sets.values()) if len({_text(one.get(name)) for one in sets.values()}) > 1]
        for sibling, text in enumerate(sorted(sets, key=lambda text: [_rank(sets[text].get(name)) for name in names])):
            told = ", ".join(f"{name}={_said(sets[text][name])}" for name in names if name in sets[text])
            known = about[variant]
            contenders[variant, text] = Contender(
                label=f"{variant} ({told})" if told else variant,
                variant=variant,
                parameters=text,
                family=known.family,
                exact=known.exact,
                time_exponent=known.time_exponent,
                memory_exponent=known.memory_exponent,
                summary=known.summary,
                paper=known.paper,
                leaks=known.causal_leak != "none",
                sibling=sibling,
                claims=tuple(known.claims),
            )
    return contenders


def _names(sets: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for one in sets for name in one))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else _text(value)


def _rank(value: Any) -> tuple[int, float, str]:
    """Numbers by size, before all else by its text."""
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, _text(value))


def _cells(ground: Ground, groups: Iterable[_Alike], contenders: Mapping[tuple[str, str], Contender]) -> list[Cell]:
    cases: dict[tuple[str, str, int, Contender], list[Record]] = defaultdict(list)
    for group in groups:
        case = group[0].case
        contender = contenders[case.variant, _text(case.parameters)]
        cases[case.workload.mask, case.workload.mode, ground.length(case.workload), contender] += group
    cells = [
        Cell(ground, contender, mask, mode, length, sorted(found, key=attrgetter("run_id", "process")))
        for (mask, mode, length, contender), found in cases.items()
    ]
    masks = {cell.mask: None for cell in cells}
    order = sorted(masks, key=lambda mask: (mask != "full", mask != "causal", mask))
    return sorted(
        cells,
        key=lambda cell: (order.index(cell.mask), MODES.index(cell.mode), cell.contender.order, cell.length),
    )


def hosts(records: Iterable[Record]) -> list[Host]:
    """Machines by fingerprint and device, each as it was first described."""
    found: dict[tuple[str, str], Host] = {}
    for host in {id(host): host for host in map(attrgetter("host"), records)}.values():  # most share one
        found.setdefault((host.fingerprint, host.device_name), host)
    return list(found.values())
