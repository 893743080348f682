"""A case in a few words: variant, mask, mode, length, and whatever else is not as usual."""

from __future__ import annotations

import dataclasses
import json

from bench import wording
from bench.record import Case
from variants._contract import Workload

_ALWAYS = ("query_length", "key_length", "mask", "mode", "device")
_USUAL = {field.name: field.default for field in dataclasses.fields(Workload)}


def contender(case: Case) -> str:
    """linformer(rank=128)."""
    told = ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in case.parameters.items()
    )
    return f"{case.variant}({told})" if told else case.variant


def length(case: Case) -> str:
    """1k; 512×1k where queries and keys are not as many."""
    workload = case.workload
    queries, keys = wording.length(workload.query_length), wording.length(workload.key_length)
    return queries if workload.is_square else f"{queries}×{keys}"


def rest(case: Case) -> str:
    """bfloat16, batch=8: the dimensions that are not the default ones."""
    workload = case.workload
    unusual = {
        name: getattr(workload, name)
        for name, usual in _USUAL.items()
        if name not in _ALWAYS and getattr(workload, name) != usual
    }
    if unusual.get("kv_heads") == workload.heads:
        del unusual["kv_heads"]
    return ", ".join(value if name == "dtype" else f"{name}={value}" for name, value in unusual.items())


def named(case: Case) -> str:
    """The whole case on one line."""
    workload = case.workload
    return " ".join(filter(None, [contender(case), workload.mask, workload.mode, length(case), rest(case)]))
