"""What grounds are called: the shape, and whatever beyond it tells one from another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from bench import wording
from bench.cells import Ground
from bench.report import trust


def axis(ground: Ground) -> str:
    """The length that varies, and what the other one is."""
    if ground.queries is not None:
        return f"number of keys, for {wording.counted(ground.queries, 'query').replace('querys', 'queries')}"
    if ground.keys is not None:
        return f"number of queries, for {wording.length(ground.keys)} keys"
    return "length N"


def titles(grounds: Sequence[Ground]) -> list[str]:
    """What each ground is, and beyond that whatever tells it from those that would be called the same."""
    plain = [plain_title(ground) for ground in grounds]
    alike: dict[str, list[Ground]] = {}
    for ground, title in zip(grounds, plain, strict=True):
        alike.setdefault(title, []).append(ground)
    shared = {
        title: frozenset.intersection(*(frozenset(finer(one)) for one in group)) for title, group in alike.items()
    }
    return [
        ", ".join([title, *(told for told in finer(ground) if told not in shared[title])])
        for ground, title in zip(grounds, plain, strict=True)
    ]


def plain_title(ground: Ground) -> str:
    """The machine and the shape."""
    heads = f"{wording.counted(ground.heads, 'head')} of {ground.head_dim}"
    parts = [ground.device_name, ground.dtype, f"batch {ground.batch}", heads]
    if ground.kv_heads != ground.heads:
        parts.append(wording.counted(ground.kv_heads, "key-value head"))
    if ground.value_head_dim is not None:
        parts.append(f"values of {ground.value_head_dim}")
    if ground.queries is not None or ground.keys is not None:
        parts.append(axis(ground).partition(", for ")[2])
    return ", ".join(parts)


def finer(ground: Ground) -> list[str]:
    """Everything else that sets grounds apart, as words."""
    settings = [
        f"{name.replace('_', ' ')} {value}"
        for name in ground.settings.__struct_fields__
        if (value := getattr(ground.settings, name)) is not None
    ]
    versions = [f"{name} {version}" for name, version in ground.versions]
    named = [f.name for f in fields(ground) if f.name in ("scale", "inputs", "seed", "run_id", "kind", "fingerprint")]
    rest = [f"{name.replace('_', ' ')} {getattr(ground, name)}" for name in named if getattr(ground, name) is not None]
    return [*settings, f"revision {trust.revision(ground)}", *versions, *rest]
