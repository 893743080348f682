"""The times of a run in the JSON of pytest-benchmark, so that ``pytest-benchmark compare`` and other tools read them.

One benchmark a record that was timed. A round is a block, so that ``rounds`` counts them; quartiles and outliers are
computed as pytest-benchmark does. What it does not know (memory, errors, what ran) goes into ``extra_info``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import wording
from bench.errors import WrongUsageError
from bench.record import Measured, Record

# The version of pytest-benchmark whose format this is.
FORMAT_VERSION = "5.0.0"

_EXTRA = (
    "peak_bytes",
    "saved_bytes",
    "setup_seconds",
    "own_error",
    "tolerance",
    "useful_flops",
    "issued_flops",
    "roofline_fraction",
    "settled",
    "timer",
    "dispatched",
)


def write(records: Sequence[Record], path: Path) -> None:
    """Write those of ``records`` that were timed; a file without benchmarks if none was.

    Raises:
        WrongUsageError: the file cannot be written.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document(records), indent=4, ensure_ascii=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise WrongUsageError(f"expected a file that can be written, cannot write {path}: {error.strerror}") from error


def document(records: Sequence[Record]) -> dict[str, Any]:
    """The whole file. Machine and commit are those of the first record; no user or host name is in it."""
    first = records[0] if records else None
    runs = len({record.run_id for record in records}) > 1
    processes = len({record.process for record in records}) > 1
    return {
        "machine_info": _machine(first),
        "commit_info": _commit(first),
        "benchmarks": [
            _benchmark(record, record.outcome, _replicate(record, runs=runs, processes=processes))
            for record in records
            if isinstance(record.outcome, Measured) and record.outcome.seconds
        ],
        "datetime": (first.at if first else None) or "1970-01-01T00:00:00+00:00",
        "version": FORMAT_VERSION,
    }


def _machine(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {}
    host = record.host
    return {
        "node": host.fingerprint,
        "processor": host.cpu,
        "system": host.system,
        "python_version": record.source.versions.get("python", ""),
        "cpu": {"brand_raw": host.cpu, "count": host.cores},
        "gpus": host.gpus,
    }


def _commit(record: Record | None) -> dict[str, Any]:
    source = record.source if record else None
    return {
        "id": (source.git if source else None) or "unknown",
        "dirty": bool(source.dirty) if source else False,
        "project": "attention-bench",
        "branch": "(unknown)",
        "time": None,
        "author_time": None,
    }


def _replicate(record: Record, *, runs: bool, processes: bool) -> dict[str, Any]:
    """What tells records of one case apart here; nothing where a case has one, so that files can be compared."""
    return ({"run_id": record.run_id} if runs else {}) | ({"process": record.process} if processes else {})


def _benchmark(record: Record, outcome: Measured, replicate: dict[str, Any]) -> dict[str, Any]:
    case, workload = record.case, record.case.workload
    lengths = dict.fromkeys((workload.query_length, workload.key_length))
    shape = "x".join(wording.length(count) for count in lengths)
    told = [shape, workload.mask, workload.mode]
    told += [f"{key}={value}" for key, value in (case.parameters | replicate).items()]
    name = f"{case.variant}[{'-'.join(told)}]"
    parameters = {f"parameter_{key}": value for key, value in case.parameters.items()}
    known = msgspec.to_builtins(outcome)
    fidelity = known["fidelity"] or {}
    return {
        "group": f"{workload.device} {workload.dtype} {workload.mask} {workload.mode} {shape}",
        "name": name,
        "fullname": f"{_setting(record)}::{name}",
        "params": msgspec.to_builtins(workload) | parameters | replicate,
        "param": "-".join(told),
        "extra_info": {key: known[key] for key in _EXTRA} | fidelity,
        "options": {"timer": outcome.timer, "warmup": True, "disable_gc": True},
        "stats": stats(outcome.seconds),
    }


def _setting(record: Record) -> str:
    """Everything of the workload that the name does not tell, so that ``fullname`` is the identity of the case."""
    workload = record.case.workload
    rest = (workload.device, workload.dtype, workload.batch, workload.heads, workload.kv_heads, workload.head_dim)
    usual = {"inputs": "normal", "seed": 0, "value_head_dim": None, "scale": None}
    unusual = [f"{key}={value}" for key in usual if (value := getattr(workload, key)) != usual[key]]
    return "attention/" + "-".join([*map(str, rest), *unusual])


def stats(seconds: Sequence[float]) -> dict[str, Any]:
    """Of one round or more, the fields of pytest-benchmark's ``stats``."""
    ordered = sorted(seconds)
    mean, total, rounds = statistics.mean(ordered), sum(ordered), len(ordered)
    deviation = statistics.stdev(ordered) if rounds > 1 else 0.0
    q1, q3 = _quartiles(ordered)
    fence_low, fence_high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    far = sum(not mean - deviation <= value <= mean + deviation for value in ordered)
    beyond = sum(not fence_low <= value <= fence_high for value in ordered)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": rounds,
        "median": statistics.median(ordered),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": beyond,
        "stddev_outliers": far,
        "outliers": f"{far};{beyond}",
        "ld15iqr": min(value for value in ordered if value >= fence_low),
        "hd15iqr": max(value for value in ordered if value <= fence_high),
        "ops": rounds / total if total else 0,
        "total": total,
        "data": list(seconds),
        "iterations": 1,
    }


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """Medians of both halves; of an odd number, weighted between the two usual ways to halve it."""
    count = len(ordered)
    if count == 1:
        return ordered[0], ordered[0]
    if count % 2 == 0:
        return statistics.median(ordered[: count // 2]), statistics.median(ordered[count // 2 :])
    n = count // 4
    if count % 4 == 1:
        return 0.25 * ordered[n - 1] + 0.75 * ordered[n], 0.75 * ordered[3 * n] + 0.25 * ordered[3 * n + 1]
    return 0.75 * ordered[n] + 0.25 * ordered[n + 1], 0.25 * ordered[3 * n + 1] + 0.75 * ordered[3 * n + 2]
