"""What ran: dispatched operators and CUDA kernels, by first use, and whether they are what the variant's name says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from variants._contract import Kernels, Variant

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler talks to stderr otherwise

MEMORY_EVENT = "[memory]"
MARK = "attention-bench: forward is done"

_COMPILED_GRAPH = re.compile(r"(?:## Call )?CompiledFxGraph (\w+)(?: ##)?")
_ENGINE = "autograd::engine::evaluate_function"  # the node that it runs is an event of its own
_LONGEST_NAME = 200


def names(events: Iterable[Any]) -> list[str]:
    """Names of a profile's operators and kernels in order of first appearance."""
    found: dict[str, None] = {}
    for event in events:
        name = event.name()
        if name not in (MEMORY_EVENT, MARK) and not name.startswith(_ENGINE):
            found.setdefault(name)
    return list(found)


def objection(kernels: Kernels, dispatched: Sequence[str]) -> str | None:
    """Why this is not what the variant claims to run, or None."""
    for pattern in kernels.forbidden:
        for name in dispatched:
            if re.search(pattern, name):
                return f"expected nothing like {pattern!r} to run, saw {name!r}"
    for pattern in kernels.required:
        if not any(re.search(pattern, name) for name in dispatched):
            return f"expected something like {pattern!r} to run, saw {', '.join(dispatched) or 'nothing'}"
    return None


def fell_back(variant: Variant, device: str, dispatched: Sequence[str]) -> str | None:
    """The objection of the variant's own patterns for this device type, or None; without patterns there is no claim."""
    kernels = variant.kernels.get(device.partition(":")[0])
    return None if kernels is None else objection(kernels, dispatched)


def readable(dispatched: Sequence[str]) -> list[str]:
    """Names as they are stored: without the hash of a compiled graph, at most 200 characters, each once."""
    return list(dict.fromkeys(_COMPILED_GRAPH.sub("CompiledFxGraph", name)[:_LONGEST_NAME] for name in dispatched))
