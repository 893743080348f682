"""From a suite to cases: which variants, with which parameters, on which workloads, in which order.

Deterministic: the same suite on the same variants gives the same cases in the same order, and so the same shards.
Nothing here imports torch; what a variant is comes from a catalogue that a worker gave.
"""

from __future__ import annotations

import fnmatch
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from bench import wording
from bench.errors import WrongUsageError, unknown
from bench.fidelity.trial import NO_ATTENTION
from bench.record import Case
from bench.sweep.suite import ALL, Suite, Sweep, Trial
from variants._contract import Workload

_C = TypeVar("_C", bound=Case)
_SHARD = re.compile(r"(\d+)/(\d+)")

Resolver = Callable[[str, dict[str, Any]], dict[str, Any]]


class Cell(NamedTuple):
    """A case in one replicate: what becomes one record."""

    case: Case
    process: int


def cases(suite: Suite, names: Sequence[str], device: str, resolve: Resolver) -> list[Case]:
    """Every case of the sweeps once; none where a suite has trials alone.

    ``names``: the variants there are; ``resolve``: all parameters of a variant from the given ones.

    Raises:
        WrongUsageError: an unknown variant, dimensions that do not fit together, or nothing left to measure.

    """
    _check(suite, names)
    sweeps = [_of_bare_attentions(sweep, suite) for sweep in suite.sweeps]
    every = (case for sweep in sweeps for case in _cases(sweep, names, device, resolve))
    return list({case.key(): case for case in every}.values())


def _of_bare_attentions(sweep: Sweep, suite: Suite) -> Sweep:
    """Without what only trials know, which options may have chosen for both."""
    if not suite.trials:
        return sweep
    variants, skip = (tuple(name for name in names if name != NO_ATTENTION) for names in (sweep.variants, sweep.skip))
    return msgspec.structs.replace(sweep, variants=variants, skip=skip)


def _cases(sweep: Sweep, names: Sequence[str], device: str, resolve: Resolver) -> Iterator[Case]:
    workloads = [*_workloads(sweep, device.partition(":")[0])]
    for variant in selected(sweep, names):
        for parameters in combinations(sweep.parameters.get(variant, {})):
            full = resolve(variant, parameters)
            for workload in workloads:
                yield Case(variant=variant, parameters=full, workload=workload)


def selected(table: Sweep | Trial, names: Sequence[str]) -> list[str]:
    """The variants of a sweep or of trials, in the order in which it names them.

    Raises:
        WrongUsageError: a name or pattern that fits none.

    """
    skipped = set(_matching(table.skip, names))
    return [name for name in _matching(table.variants, names) if name not in skipped]


def _matching(patterns: Iterable[str], names: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = names if pattern == ALL else fnmatch.filter(names, pattern)
        if not matching:
            raise unknown("variant", pattern, names)
        found |= dict.fromkeys(matching)
    return list(found)


def _check(suite: Suite, names: Sequence[str]) -> None:
    """Whether something is chosen, for sweeps or trials, and what is said of variants is of chosen ones alone."""
    known = [*names, NO_ATTENTION] if suite.trials else names
    sweeps = [_of_bare_attentions(sweep, suite) for sweep in suite.sweeps]
    measured = dict.fromkeys(name for sweep in sweeps for name in selected(sweep, names))
    chosen = {*measured, *(name for trial in suite.trials for name in selected(trial, known))}
    if not chosen:
        raise WrongUsageError("expected at least one variant, and everything chosen is skipped")
    if sweeps and suite.baseline is not None and suite.baseline not in measured and _is_insisted(suite.baseline, suite):
        raise unknown("--baseline: variant", suite.baseline, measured)
    tables: list[Sweep | Trial] = [*sweeps, *suite.trials]
    for variant in dict.fromkeys(variant for table in tables for variant in table.parameters):
        if variant not in known:
            raise unknown("--param: variant", variant, known)
        if variant not in chosen and _is_insisted(variant, suite):
            raise WrongUsageError(f"--param names {variant}, which is not among the chosen variants; add or drop it")


def _is_insisted(variant: str, suite: Suite) -> bool:
    return suite.insisted is None or variant in suite.insisted


def combinations(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of some parameters."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _workloads(sweep: Sweep, device: str) -> Iterator[Workload]:
    for mask, mode, dtype, inputs, seed, batch, head_dim, value_head_dim, scale in itertools.product(
        sweep.mask,
        sweep.mode,
        sweep.dtype,
        sweep.inputs,
        sweep.seed,
        sweep.batch,
        sweep.head_dim,
        sweep.value_head_dim,
        sweep.scale,
    ):
        for (heads, kv_heads), (query, key) in itertools.product(_heads(sweep), _lengths(sweep)):
            try:
                yield Workload(
                    batch=batch,
                    heads=heads,
                    kv_heads=kv_heads,
                    query_length=query,
                    key_length=key,
                    head_dim=head_dim,
                    dtype=dtype,
                    device=device,
                    mask=mask,
                    mode=mode,
                    inputs=inputs,
                    seed=seed,
                    value_head_dim=None if value_head_dim == head_dim else value_head_dim,
                    scale=None if scale == head_dim**-0.5 else scale,
                )
            except ValueError as error:
                raise WrongUsageError(f"{error}; choose heads and kv_heads that fit together") from error


def _heads(sweep: Sweep) -> Iterator[tuple[int, int]]:
    for heads in sweep.heads:
        yield from ((heads, kv_heads) for kv_heads in sweep.kv_heads or (heads,))


def _lengths(sweep: Sweep) -> Iterator[tuple[int, int]]:
    for length in sweep.seq_len:
        yield from ((length, other) for other in sweep.seq_len_kv or (length,))


# --- order ----------------------------------------------------------------------------------------------------


def shard(cases: Sequence[_C], text: str | None) -> list[_C]:
    """Every n-th case from the i-th on, for ``i/n``.

    Raises:
        WrongUsageError: it is no shard, or there are fewer cases than shards.

    """
    if text is None:
        return list(cases)
    match = _SHARD.fullmatch(text)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise WrongUsageError(f"--shard: expected i/n with 1 ≤ i ≤ n, as in 1/4, got {text!r}")
    chosen = list(cases[index - 1 :: count])
    if not chosen:
        have = wording.counted(len(cases), "case")
        raise WrongUsageError(f"--shard {text}: expected no more shards than cases, got {have}; take fewer shards")
    return chosen


def passes(cells: Iterable[Cell], seed: str) -> Iterator[list[Cell]]:
    """Groups that a worker measures: a variant in a replicate. Replicate by replicate, shuffled within each.

    Neither a variant nor a length always comes first, or always after the same other one.
    """
    by_process: dict[int, dict[str, list[Cell]]] = {}
    for cell in cells:
        by_process.setdefault(cell.process, {}).setdefault(cell.case.variant, []).append(cell)
    for process, groups in sorted(by_process.items()):
        draw = random.Random(f"{seed}:{process}")  # noqa: S311  # no secret
        ordered = list(groups.values())
        draw.shuffle(ordered)
        for group in ordered:
            draw.shuffle(group)
            yield group
