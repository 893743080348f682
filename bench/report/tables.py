"""Cells as data frames: one row a cell with everything known of it, and one row a line of the run.

The speed-up of a cell is over the baseline at the same mask, mode and length on the same ground; there is none across
machines, settings, revisions or levels.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from bench import stats
from bench.cells import Cell, Contender, Ground
from bench.errors import WrongUsageError
from bench.record import Measured, Record

DEFAULT_BASELINE = "naive_sdpa"

_ENOUGH_LENGTHS = 3
_ENOUGH_RANGE = 4
_CLAIM_MARGIN = 0.1


def baseline(contenders: Iterable[Contender], wanted: str | None = None) -> str | None:
    """The label to compare with: ``wanted``, or ``naive_sdpa`` if it is there.

    Raises:
        WrongUsageError: ``wanted`` is not among them, or is several.

    """
    labels = {contender.label: contender.variant for contender in sorted(contenders, key=lambda one: one.order)}
    if wanted is None:
        return DEFAULT_BASELINE if DEFAULT_BASELINE in labels else None
    if wanted in labels:
        return wanted
    several = [label for label, variant in labels.items() if variant == wanted]
    if several:
        raise WrongUsageError(f"expected one baseline, {wanted!r} is several: give one of {'; '.join(several)}")
    near = difflib.get_close_matches(wanted, labels, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"give one of {'; '.join(labels)}"
    raise WrongUsageError(f"expected a baseline among the variants of the run, got {wanted!r}: {hint}")


def speedups(cells: Iterable[Cell], over: str | None) -> dict[Cell, stats.Estimate]:
    """How many times faster than ``over`` each timed cell of one ground is; only where that was timed too."""
    cells = list(cells)
    bases = {(cell.mask, cell.mode, cell.length): cell for cell in cells if cell.contender.label == over}
    found = {}
    for cell in cells:
        base = bases.get((cell.mask, cell.mode, cell.length))
        if base is cell and cell.samples:
            found[cell] = stats.Estimate(1.0, 1.0, 1.0)
        elif base is not None and base.samples and cell.samples:
            found[cell] = stats.ratio(base.samples, cell.samples)
    return found


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a contender's time and memory grow with the length in one workload; None below two lengths."""

    contender: Contender
    time: stats.Growth | None
    memory: stats.Growth | None


def scalings(cells: Iterable[Cell]) -> list[Scaling]:
    """Of every contender that was measured at two lengths or more. ``cells`` are of one ground, mask and mode."""
    by_contender: dict[Contender, list[Cell]] = {}
    for cell in cells:
        by_contender.setdefault(cell.contender, []).append(cell)
    found = [
        Scaling(
            contender,
            stats.growth({cell.length: cell.samples for cell in members if cell.samples}),
            stats.fixed_growth({cell.length: cell.peak_bytes for cell in members if cell.peak_bytes}),
        )
        for contender, members in by_contender.items()
    ]
    return [scaling for scaling in found if scaling.time is not None or scaling.memory is not None]


def verdict(growth: stats.Growth | None, claimed: float | None) -> str:
    """Whether the claim, an upper bound on the exponent, holds for what was measured.

    It needs three lengths over a range of four. It holds where neither the fit nor its long end exceed the claim
    by more than 0.1, and does not where both surely do; else it is open.
    """
    if growth is None or claimed is None:
        return ""
    if len(growth.lengths) < _ENOUGH_LENGTHS or growth.lengths[-1] < _ENOUGH_RANGE * growth.lengths[0]:
        return "too few lengths"
    low, high = growth.exponent.low, growth.exponent.high
    most = claimed + _CLAIM_MARGIN
    if (growth.exponent.value if high is None else high) <= most and growth.at_the_end <= most:
        return "holds"
    if (growth.exponent.value if low is None else low) > most and growth.at_the_end > most:
        return "does not hold here"
    return "open"


# --- frames ---------------------------------------------------------------------------------------------------


def cells_frame(
    gathered: Mapping[Ground, Sequence[Cell]],
    over: str | None = None,
    known: Mapping[Ground, Mapping[Cell, stats.Estimate]] | None = None,
) -> pd.DataFrame:
    """One row a cell. ``ground`` counts from 1; units are in the names; figures that are not known are missing.

    ``known``: the speed-ups over ``over``, if somebody has them already.
    """
    rows = []
    for number, (ground, cells) in enumerate(gathered.items(), start=1):
        faster = speedups(cells, over) if known is None else known[ground]
        rows += [_cell_row(number, cell, faster.get(cell), over) for cell in cells]
    return pd.DataFrame(rows)


def _cell_row(number: int, cell: Cell, speedup: stats.Estimate | None, over: str | None) -> dict[str, Any]:
    seconds = cell.seconds or stats.Estimate(np.nan)
    faster = speedup or stats.Estimate(np.nan)
    return {
        "ground": number,
        **_workload(cell.records[0]),
        "variant": cell.contender.variant,
        "parameters": cell.contender.parameters,
        "family": cell.contender.family,
        "exact": cell.contender.exact,
        "status": cell.status,
        "reason": "; ".join(reason for _, _, reason in cell.reasons()),
        "processes": len(cell.records),
        "samples": sum(map(len, cell.samples.by_process.values())),
        "seconds": seconds.value,
        "seconds_low": seconds.low,
        "seconds_high": seconds.high,
        "baseline": over if speedup else None,
        "speedup": faster.value,
        "speedup_low": faster.low,
        "speedup_high": faster.high,
        "peak_bytes": cell.peak_bytes,
        "output_bytes": cell.figures["output_bytes"],
        "saved_bytes": cell.figures["saved_bytes"],
        "workspace_bytes": cell.figures["workspace_bytes"],
        "reserved_bytes": cell.figures["reserved_bytes"],
        "setup_seconds": cell.figures["setup_seconds"],
        "compile_seconds": cell.figures["compile_seconds"],
        "first_call_seconds": cell.figures["first_call_seconds"],
        "own_error": cell.figures["own_error"],
        "tolerance": cell.figures["tolerance"],
        "gradient_error": cell.figures["gradient_error"],
        "gradient_tolerance": cell.figures["gradient_tolerance"],
        "relative_error": cell.relative_error,
        "cosine": cell.cosine,
        "useful_flops": cell.figures["useful_flops"],
        "issued_flops": cell.figures["issued_flops"],
        "effective_tflops": _tflops(cell),
        "roofline_fraction": cell.figures["roofline_fraction"],
    }


def _tflops(cell: Cell) -> float | None:
    useful = cell.figures["useful_flops"]
    return useful / cell.seconds.value / 1e12 if useful and cell.seconds else None


def records_frame(records: Iterable[Record]) -> pd.DataFrame:
    """One row a line of the run: a case in one process, with its median and what was told beside it."""
    return pd.DataFrame([_record_row(record) for record in records])


def _record_row(record: Record) -> dict[str, Any]:
    outcome = {name: getattr(record.outcome, name) for name in record.outcome.__struct_fields__}
    row: dict[str, Any] = {
        "run_id": record.run_id,
        "process": record.process,
        "at": record.at,
        **_workload(record),
        "variant": record.case.variant,
        "parameters": msgspec.json.encode(record.case.parameters, order="sorted").decode(),
        "status": record.status,
    }
    if isinstance(record.outcome, Measured):
        row |= _series(record.outcome)
        row |= {f"condition_{name}": value for name, value in sorted(record.outcome.conditions.items())}
    for name, value in outcome.items():
        if name in row or name.startswith("seconds") or name == "conditions":
            continue
        if name == "fidelity":
            row |= msgspec.to_builtins(value) if value else {}
        else:
            row[name] = "; ".join(value) if isinstance(value, list) else value
    return row


def _series(outcome: Measured) -> dict[str, Any]:
    return {
        "samples": len(outcome.seconds),
        "seconds": float(np.median(outcome.seconds)) if outcome.seconds else None,
        "seconds_least": min(outcome.seconds, default=None),
        "seconds_most": max(outcome.seconds, default=None),
        "seconds_warm": float(np.median(outcome.seconds_warm)) if outcome.seconds_warm else None,
        "seconds_graph": float(np.median(outcome.seconds_graph)) if outcome.seconds_graph else None,
    }


def _workload(record: Record) -> dict[str, Any]:
    return {
        "device_name": record.host.device_name,
        "fingerprint": record.host.fingerprint,
        "kind": record.case.kind,
        **msgspec.to_builtins(record.case.workload),
    }


def as_csv(frame: pd.DataFrame) -> bytes:
    """The frame as UTF-8, numbers to nine digits and counts to the last, the same bytes on every system."""
    counts = [name for name in frame.columns if name.endswith(("_bytes", "_flops", "_length"))]
    frame = frame.astype(dict.fromkeys(counts, "Int64"))
    return str(frame.to_csv(index=False, float_format="%.9g", lineterminator="\n")).encode()
