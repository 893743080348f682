"""How far to trust a report: the machine, the code, the conditions, and what a reader should be warned of."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from bench import stats, wording
from bench.cells import Cell, Ground
from bench.record import Host, Measured, Record
from bench.report.gaps import without_numbers

_GIB = 1024**3

# Above these, `doctor` would not call the machine fit.
_BUSY_CORES = 0.5
_STEAL = 0.02
_LOAD_PER_CORE = 1.0
_ABOVE_CEILING = 1.05
_NO_THROTTLING = ("none", "", None)

# Conditions that are told, each with its name and form.
_SHOWN = {
    "load_1min": ("load", "{:.2f}"),
    "others_busy_cores": ("cores busy with other work", "{:.2f}"),
    "steal_share": ("stolen time", "{:.1%}"),
    "cpu_mhz": ("CPU clock", "{:.0f} MHz"),
    "sm_mhz": ("SM clock", "{:.0f} MHz"),
    "memory_mhz": ("memory clock", "{:.0f} MHz"),
    "celsius": ("temperature", "{:.0f} °C"),
}

_Numbers = dict[str, list[stats.Floats]]  # of each condition, cell by cell


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What was told beside the figures of one ground; there may be a million outcomes, gone through but once.

    ``count``: outcomes with a time, of cells that count as measured; ``unsettled`` of them had not settled, and of none
    more than ``dropped`` of its samples were. ``conditions``: their numbers by name, and ``throttling`` why the device
    was slowed; ``beside``: numbers of all others.
    """

    count: int
    unsettled: int
    dropped: float
    timers: Collection[str]
    samples: Collection[int]
    conditions: _Numbers
    throttling: Sequence[object]
    beside: _Numbers


def circumstances(cells: Sequence[Cell]) -> Circumstances:
    """Of the cells of one ground."""
    count, settled, dropped = 0, 0, 0.0
    timers: set[str] = set()
    samples: set[int] = set()
    conditions: _Numbers = defaultdict(list)
    throttling: list[object] = []
    beside: _Numbers = defaultdict(list)
    for cell in cells:
        measured = [outcome for outcome in cell.outcomes if isinstance(outcome, Measured)]
        timed = [outcome for outcome in measured if outcome.seconds]
        timers.update(outcome.timer for outcome in timed)
        samples.update(len(outcome.seconds) for outcome in timed)
        if cell.status == "measured":
            count += len(timed)
            settled += sum(outcome.settled for outcome in timed)
            dropped = max([dropped, *(outcome.dropped_share for outcome in timed)])
            throttling += _extend(conditions, timed)
            _extend(beside, [outcome for outcome in measured if not outcome.seconds])
        else:
            _extend(beside, measured)
    return Circumstances(count, count - settled, dropped, timers, samples, conditions, throttling, beside)


def _extend(conditions: _Numbers, outcomes: Iterable[Measured]) -> list[object]:
    """With the numbers of each condition; returns what there is of throttling."""
    told = [outcome.conditions for outcome in outcomes]
    names = set[str]().union(*told)
    for name in names & _SHOWN.keys():
        values = [one[name] for one in told if name in one]
        if not {float, int}.issuperset(map(type, values)):
            values = [value for value in values if isinstance(value, (float, int))]
        conditions[name].append(np.array(values, np.float64))
    if "throttling" not in names:
        return []
    return [one["throttling"] for one in told if one.get("throttling") not in _NO_THROTTLING]


def environment(ground: Ground, cells: Sequence[Cell], host: Host, told: Circumstances) -> list[tuple[str, str]]:
    """What was measured on and with, as name and value."""
    settings = ground.settings
    facts = [
        ("device", ground.device_name),
        ("CPU", f"{host.cpu}, {wording.counted(host.cores, 'usable core')}" if host.cores else host.cpu),
        ("memory", f"{host.memory_gib} GiB" if host.memory_gib else ""),
        ("GPUs", ", ".join(host.gpus)),
        ("GPU memory", f"{host.gpu_memory_bytes / _GIB:.1f} GiB" if host.gpu_memory_bytes else ""),
        ("system", host.system),
        ("threads", str(settings.threads)),
        ("float32 precision", settings.float32_precision),
        ("budget per case", _seconds(settings.time_budget_seconds)),
        ("timeout per case", _seconds(settings.timeout_seconds)),
        ("timer", ", ".join(sorted(told.timers))),
        ("revision", revision(ground)),
        ("versions", ", ".join(f"{name} {version}" for name, version in ground.versions)),
        ("runs", ", ".join(sorted({record.run_id for cell in cells for record in cell.records}))),
        ("measured", days(record for cell in cells for record in cell.records)),
        ("processes per case", _range({len(cell.records) for cell in cells})),
        ("samples per process", _range(told.samples)),
        ("noise floor", noise_floor(cells)),
        ("ceilings", _ceilings(host.ceilings)),
        *_conditions(told),
    ]
    return [(name, value) for name, value in facts if value]


def noise_floor(cells: Iterable[Cell]) -> str:
    """How much the same case differs between processes or, with one each, between the blocks of it; over all cases.

    The standard deviation of the logarithms, in the median case and in the worst.
    """
    between, within = [], []
    for cell in cells:
        if len(cell.samples) > 1:
            between.append(float(np.std(np.log(cell.samples.medians), ddof=1)))
        elif cell.samples.only is not None and len(cell.samples.only) > 1:
            within.append(float(np.std(np.log(cell.samples.only), ddof=1)))
    spreads, where = (
        (between, "processes") if between else (within, "blocks of one process; between processes not known")
    )
    if not spreads:
        return ""
    cases = wording.counted(len(spreads), "case")
    middle, worst = wording.percent(statistics.median(spreads)), wording.percent(max(spreads))
    return f"±{middle} in the median of {cases}, ±{worst} in the worst (SD between {where})"


def revision(ground: Ground) -> str:
    """The commit, shortened, and whether the code differed from it."""
    if ground.git is None:
        return "not known"
    return ground.git[:12] + (" with uncommitted changes" if ground.dirty else "")


def warnings(ground: Ground, cells: Sequence[Cell], host: Host, told: Circumstances) -> list[str]:
    """What a reader should know before believing a figure; a sentence each."""
    found = []
    if ground.dirty:
        found.append("The code had uncommitted changes: this revision alone does not repeat the figures.")
    if told.count and all(len(cell.samples) == 1 for cell in cells if cell.samples):
        found.append(
            "Every case was measured in one process. Its intervals cover what varied within that process; identical "
            "code in two processes can differ by several percent. Differences under 5% are called noise here."
        )
    if told.unsettled:
        found.append(
            f"{told.unsettled} of {told.count} series of samples had not settled to ±0.5% when the time budget was "
            "spent; their intervals say how far they got."
        )
    found += [sentence for sentence in _disturbances(told, host) if sentence]
    fractions = [cell.figures["roofline_fraction"] for cell in cells]
    beyond = [fraction for fraction in fractions if fraction is not None and fraction > _ABOVE_CEILING]
    if beyond:
        found.append(
            f"{wording.counted(len(beyond), 'case')} reached up to {wording.percent(max(beyond))} of what the machine "
            "was measured to do at best: FLOP count, ceiling or time cannot be right."
        )
    leaking = {cell.contender.label for cell in cells if cell.samples and cell.contender.leaks and cell.mask != "full"}
    if leaking:
        found.append(
            f"{wording.listed(sorted(leaking))}: under a causal mask no value to come is seen, but keys to come can "
            "move the choice of what is."
        )
    if any(not cell.contender.exact for cell in cells if cell.samples) and ground.inputs == "normal":
        found.append(
            "Inputs were random normal numbers, on which approximations rank differently than on real activations; "
            "methods that need training were not trained. Take their fidelity as a check, not as a choice."
        )
    return found


def _disturbances(told: Circumstances, host: Host) -> Iterable[str]:
    busy, steal, load = (
        _middle(_joined(name, told.conditions)) for name in ("others_busy_cores", "steal_share", "load_1min")
    )
    if busy is not None and busy > _BUSY_CORES:
        yield f"Other work kept {busy:.1f} cores busy, in the median case."
    if steal is not None and steal > _STEAL:
        yield f"The host took {wording.percent(steal)} of the cores' time away, in the median case."
    if load is not None and host.cores and busy is None and load / host.cores > _LOAD_PER_CORE:
        yield f"The load was {load:.1f} on {wording.counted(host.cores, 'core')}, in the median case."
    if told.throttling:
        reasons = sorted(set(map(str, told.throttling)))
        yield f"The device throttled during {len(told.throttling)} of {told.count} measurements ({'; '.join(reasons)})."
    if told.dropped > 0.1:  # noqa: PLR2004  # a tenth
        yield f"Up to {wording.percent(told.dropped)} of a case's samples were dropped for a known disturbance."


def notes(cells: Iterable[Cell]) -> list[tuple[str, int, int]]:
    """What the measuring itself noted, how often, in how many ways that differ in numbers; the most frequent first."""
    alike: dict[str, list[str]] = {}
    for cell in cells:
        for note in chain.from_iterable(outcome.notes for outcome in cell.measured):
            alike.setdefault(without_numbers(note), []).append(note)
    told = [(notes[0], len(notes), len(set(notes))) for notes in alike.values()]
    return sorted(told, key=lambda note: (-note[1], note[0]))


def dispatched(cells: Iterable[Cell]) -> list[tuple[str, list[str]]]:
    """What ran under the name of each contender, by first use, over all its measured cases."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        names = {id(outcome.dispatched): outcome.dispatched for outcome in cell.measured}  # most share one list
        for dispatched in names.values():
            found.setdefault(cell.contender.label, {}).update(dict.fromkeys(dispatched))
    return [(label, list(names)) for label, names in found.items()]


def _conditions(told: Circumstances) -> list[tuple[str, str]]:
    return [(name, _spread(_joined(key, told.conditions, told.beside), form)) for key, (name, form) in _SHOWN.items()]


def _joined(name: str, *numbers: _Numbers) -> stats.Floats:
    return np.concatenate([np.empty(0), *(part for one in numbers for part in one.get(name, []))])


def _middle(values: stats.Floats) -> float | None:
    return float(np.median(values)) if values.size else None


def _spread(values: stats.Floats, form: str) -> str:
    """The median, and from where to where."""
    if not values.size:
        return ""
    middle, least, most = map(form.format, (np.median(values), values.min(), values.max()))
    return middle if least == most else f"{middle} ({least} to {most})"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{wording.number(value, 6).rstrip('0').rstrip('.')} s"


def _range(counts: Collection[int]) -> str:
    if not counts:
        return ""
    return str(min(counts)) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


def days(records: Iterable[Record]) -> str:
    """The first and the last on which anything was measured."""
    times = [record.at for record in records if record.at]
    return " to ".join(dict.fromkeys((min(times)[:10], max(times)[:10]))) if times else ""


def _ceilings(ceilings: Mapping[str, float]) -> str:
    """The matrix-product rate of each dtype, and the copy bandwidth of main memory."""
    told = []
    for name, rate in ceilings.items():
        figure, _, of = name.partition(":")
        if figure == "matmul_flops_per_second":
            told.append(f"{wording.number(rate / 1e12)} TFLOP/s ({of} matrix product)")
        elif name == "copy_bytes_per_second":
            told.append(f"{wording.number(rate / 1e9)} GB/s (copy in main memory)")
    return ", ".join(told)
