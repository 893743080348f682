"""The command that repeats a table: read from its cells alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence

from bench import wording
from bench.cells import Cell, Ground


def command(ground: Ground, cells: Sequence[Cell]) -> str:
    """One line that measures the cells of one mask and mode again, on a machine like theirs.

    A variant from outside needs its ``--variant-file`` too.
    """
    variants = list(dict.fromkeys(cell.contender.variant for cell in cells))
    lengths = sorted({cell.length for cell in cells})
    options: dict[str, object] = {
        "--variants": ",".join(variants),
        "--seq-len": _lengths(lengths if ground.queries is None else [ground.queries]),
        "--seq-len-kv": None if ground.queries is None and ground.keys is None else _keys(ground, lengths),
        "--mask": cells[0].mask,
        "--mode": cells[0].mode,
        "--batch": ground.batch,
        "--heads": ground.heads,
        "--kv-heads": ground.kv_heads,
        "--head-dim": ground.head_dim,
        "--value-head-dim": ground.value_head_dim,
        "--scale": ground.scale,
        "--dtype": ground.dtype,
        "--device": ground.device,
        "--inputs": ground.inputs,
        "--seed": ground.seed,
        "--threads": ground.settings.threads,
        "--float32-precision": ground.settings.float32_precision,
        "--time-budget": ground.settings.time_budget_seconds,
        "--timeout": ground.settings.timeout_seconds,
        "--processes": max(len(cell.records) for cell in cells),
        "--out": "again.jsonl",
    }
    words = [word for name, value in options.items() if value is not None for word in (name, _plain(value))]
    words += [word for setting in _parameters(cells) for word in ("--param", setting)]
    return shlex.join(["python", "-m", "bench", "run", *words])


def _parameters(cells: Iterable[Cell]) -> list[str]:
    """``variant.name=value`` of every parameter, with all its values."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        case = cell.records[0].case
        for name, value in case.parameters.items():
            values.setdefault(f"{case.variant}.{name}", {})[_spelled(value)] = None
    return [f"{name}={','.join(chosen)}" for name, chosen in values.items()]


def _spelled(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _keys(ground: Ground, lengths: Sequence[int]) -> str:
    return _lengths(lengths if ground.keys is None else [ground.keys])


def _lengths(lengths: Sequence[int]) -> str:
    return ",".join(wording.length(length) for length in lengths)


def _plain(value: object) -> str:
    """Without ``.0``, but with every digit: seven replicates share three seconds."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
