"""The options with which `run` and `verify` choose what to cover, and the suite that they spell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from bench.errors import WrongUsageError
from bench.sweep import suite
from bench.sweep.suite import Suite

_Command = TypeVar("_Command", bound=Callable[..., Any])

# name, metavar, help; each takes values joined by commas, and may be given several times
_AXES = (
    ("variants", "A,B", "Variants, by name or pattern such as 'sdpa_*'; all of them if not given."),
    ("skip", "C", "Variants to leave out."),
    ("seq-len", "N,…", "Lengths of the query, such as 512,8k."),
    ("seq-len-kv", "N,…", "Lengths of key and value, if not those of the query."),
    ("batch", "B,…", ""),
    ("heads", "H,…", "Query heads."),
    ("kv-heads", "H,…", "Key-value heads (GQA), if not as many as query heads."),
    ("head-dim", "D,…", "Channels of a head."),
    ("value-head-dim", "D,…", "Channels of a value head, if not those of a key head."),
    ("dtype", "T,…", "float64, float32, bfloat16, float16, or fp64, fp32, bf16, fp16."),
    ("mask", "M,…", "full, causal, window:256, document:4, …; '+' joins them, as in causal+alibi."),
    ("mode", "fwd,bwd,fwd_bwd", "Forward, backward, or both."),
    ("inputs", "NAME,…", "normal, minilm[:LAYER], matched[:LAYER] or file:PATH.safetensors; docs/fidelity.md."),
    ("seed", "S,…", "Of inputs, seeded masks and random weights."),
    ("scale", "X,…", "What scores are multiplied by, if not 1/√head_dim."),
)  # fmt: skip
AXES = tuple(name.replace("-", "_") for name, *_ in _AXES)
_SETTINGS = (
    "device",
    "time_budget",
    "timeout",
    "trial_timeout",
    "threads",
    "float32_precision",
    "processes",
    "baseline",
)


def options(command: _Command) -> _Command:
    """Add the options of a selection to a command, which gets them as keyword arguments for :func:`suite_of`."""
    decorators = [
        click.option("--suite", "suite_name", metavar="NAME|FILE.toml", help="Such as quick or bert, or your own."),
        *(click.option(f"--{name}", metavar=metavar, multiple=True, help=text) for name, metavar, text in _AXES),
        click.option("--text", metavar="FILE.txt", help="What minilm and matched read, if not Python's own reference."),
        click.option("--param", multiple=True, metavar="VARIANT.NAME=X,…", help="A variant's parameter."),
        click.option("--variant-file", "variant_files", multiple=True, metavar="FILE.py", help="Your own variant."),
        click.option("--device", metavar="auto|cpu|cuda[:i]", help="Where to run; auto takes CUDA if it can."),
        click.option("--threads", type=int, help="CPU threads; all usable cores if not given."),
        click.option("--float32-precision", metavar="highest|high", help="Of float32 matrix products on CUDA."),
        click.option("--shard", metavar="i/n", help="Every n-th case from the i-th, to split a sweep over machines."),
        click.option("--timeout", type=float, metavar="SECONDS", help="Per case, before its process is killed."),
        click.option("--memory-limit", metavar="SIZE", help="What a worker process may hold, such as 8G."),
    ]  # fmt: skip
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def suite_of(chosen: Mapping[str, Any]) -> Suite:
    """The suite that the options spell: the named one, with what else they say.

    Raises:
        WrongUsageError: nothing is chosen, or something unusable.

    """
    axes = {name: values_of(name, chosen) for name in AXES}
    given: dict[str, Any] = {name: values for name, values in axes.items() if values}
    if chosen["text"] is not None:
        given["inputs"] = _reading(given.get("inputs", []), chosen["text"])
    if chosen["param"]:
        given["param"] = parameters(chosen["param"])
    if chosen["suite_name"] is None and not given and not chosen["variant_files"]:
        built_in = ", ".join(suite.built_in_suites())
        raise WrongUsageError(f"expected what to measure: --suite ({built_in}, or a TOML file), --variants or an axis")
    base = Suite() if chosen["suite_name"] is None else suite.load(chosen["suite_name"])
    settings = {name: chosen[name] for name in _SETTINGS if chosen.get(name) is not None}
    return suite.override(base, axes=given, settings=settings)


def _reading(inputs: Sequence[str], text: str) -> list[str]:
    """Inputs in which those that read a text read this one."""
    readers = [name for name in inputs if name.partition(":")[0] in ("minilm", "matched") and "@" not in name]
    if not readers:
        raise WrongUsageError("--text is for inputs that read one: give --inputs minilm or matched too")
    return [f"{name}@{text}" if name in readers else name for name in inputs]


def memory_bytes(text: str | None) -> int | None:
    """``8G``, ``512M`` or a number of bytes.

    Raises:
        WrongUsageError: none of these.

    """
    if text is None:
        return None
    number, scale = (text[:-1], text[-1:].upper()) if text[-1:].upper() in _SCALES else (text, "")
    try:
        size = int(float(number) * _SCALES[scale])
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise WrongUsageError(f"--memory-limit: expected a size such as 8G or 512M, got {text!r}")
    return size


_SCALES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def values(texts: Sequence[str]) -> list[str]:
    """What several options hold, joined by commas."""
    return [value.strip() for text in texts for value in text.split(",") if value.strip()]


def values_of(name: str, chosen: Mapping[str, Any]) -> list[str]:
    """The same of one option, by its name in ``chosen``; each time that it is given it has to hold one.

    Raises:
        WrongUsageError: only commas.

    """
    for text in chosen[name]:
        if not values([text]):
            raise WrongUsageError(
                f"--{name.replace('_', '-')}: expected a value, or several joined by commas, got {text!r}"
            )
    return values(chosen[name])


def parameters(texts: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """By variant and name, what --param gives.

    Raises:
        WrongUsageError: it is not spelled variant.name=value.

    """
    found: dict[str, dict[str, list[str]]] = {}
    for text in texts:
        name, equals, given = text.partition("=")
        variant, dot, parameter = name.strip().partition(".")
        if not (equals and dot and variant and parameter and values([given])):
            raise WrongUsageError(f"--param: expected variant.name=value, as in linformer.rank=128, got {text!r}")
        found.setdefault(variant, {}).setdefault(parameter, []).extend(values([given]))
    return found
