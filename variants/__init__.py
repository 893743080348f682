"""The attentions, one file each, and how they are found. See ``docs/add-a-variant.md``."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from variants._contract import CausalLeak, Claim, Complexity, Kernels, Paper, Use, Variant

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

ENTRY_POINT_GROUP = "attention_bench.variants"

_NAME = re.compile(r"[\w.-]+")  # no comma, which parts names, no blank or line break, which would tear tables


class VariantError(ValueError):
    """A file, module or entry point that gives no usable variant. The message says what to do."""


def find(files: Iterable[Path] = ()) -> dict[str, Variant]:
    """Every variant by name: the built-in ones, those of installed packages, then those of ``files``.

    Raises:
        VariantError: a source without a ``VARIANT``, or two variants of one name.

    """
    found: dict[str, Variant] = {}
    for source, variant in (*_built_in(), *_from_entry_points(), *((str(file), load(file)) for file in files)):
        if variant.name in found:
            raise VariantError(f"variant {variant.name!r} of {source} has the name of another one; rename it")
        found[variant.name] = variant
    return found


def load(file: Path) -> Variant:
    """The ``VARIANT`` of a Python file outside this package.

    Raises:
        VariantError: the file is missing, cannot be imported, or has no ``VARIANT``.

    """
    spec = importlib.util.spec_from_file_location(f"variant_file_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise VariantError(f"expected a Python file with a VARIANT, got {str(file)!r}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise VariantError(f"variant file {str(file)!r} cannot be imported: {type(error).__name__}: {error}") from error
    return _variant_of(module, str(file))


def _built_in() -> Iterable[tuple[str, Variant]]:
    for info in pkgutil.iter_modules(__path__):
        if not info.name.startswith("_"):
            source = f"{__name__}.{info.name}"
            yield source, _variant_of(importlib.import_module(source), source)


def _from_entry_points() -> Iterable[tuple[str, Variant]]:
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        loaded = point.load()
        source = f"entry point {point.name!r}"
        yield source, _checked(loaded, source) if isinstance(loaded, Variant) else _variant_of(loaded, source)


def _variant_of(module: ModuleType, source: str) -> Variant:
    variant = getattr(module, "VARIANT", None)
    if not isinstance(variant, Variant):
        raise VariantError(f"{source} has no VARIANT of type variants._contract.Variant; see docs/add-a-variant.md")
    return _checked(variant, source)


# --- what stands in it ----------------------------------------------------------------------------------------


def _checked(variant: Variant, source: str) -> Variant:
    """The variant, if its name can be chosen and printed, and every field is of its type.

    Raises:
        VariantError: one is not; the message names the source, the variant and the field.

    """
    name: Any = variant.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        expected = "letters, digits, '_', '-' and '.'"
        raise VariantError(f"{source}: expected a name of {expected}, got {name!r}; rename the variant")
    for field, (fits, expected) in _FIELDS.items():
        value = getattr(variant, field)
        if not fits(value):
            raise VariantError(f"{source}: variant {name!r}: expected {field} to be {expected}, got {value!r}")
    return variant


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_complexity(value: Any) -> bool:
    return isinstance(value, Complexity) and all(isinstance(each, int | float) for each in (value.time, value.memory))


def _is_paper(value: Any) -> bool:
    kinds = {"title": str, "year": int, "arxiv": str | None}
    return value is None or (
        isinstance(value, Paper) and all(isinstance(getattr(value, name), kind) for name, kind in kinds.items())
    )


def _has_defaults(value: Any) -> bool:
    """Whether it is a dataclass that can be made without saying anything."""
    missing = dataclasses.MISSING
    return (
        isinstance(value, type)
        and dataclasses.is_dataclass(value)
        and all(
            not field.init or field.default is not missing or field.default_factory is not missing
            for field in dataclasses.fields(value)
        )
    )


def _several(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple | list) and all(isinstance(each, kind) for each in value)


def _are_kernels(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(device, str) and isinstance(kernels, Kernels) for device, kernels in value.items()
    )


_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "family": (_is_text, "text"),
    "exact": (_is_flag, "True or False"),
    "summary": (_is_text, "text"),
    "paper": (_is_paper, "a Paper of text, a whole number and text, or None"),
    "parameters": (_has_defaults, "a dataclass with a default for every field"),
    **dict.fromkeys(("build", "obstacles", "reference", "flops"), (callable, "a function")),
    "complexity": (_is_complexity, "a Complexity of two numbers"),
    "claims": (_several(Claim), "a tuple of Claim"),
    "equation": (_is_text, "text"),
    "exact_when": (_is_text, "text"),
    "traps": (_several(str), "a tuple of texts"),
    "uses": (
        lambda value: isinstance(value, frozenset | set) and value <= {*get_args(Use)},
        f"a set of {', '.join(get_args(Use))}",
    ),
    "route": (lambda value: value is None or callable(value), "a function or None"),
    "causal_leak": (lambda value: value in get_args(CausalLeak), f"one of {', '.join(get_args(CausalLeak))}"),
    "kernels": (_are_kernels, "a mapping from device types to Kernels"),
    "stochastic": (_is_flag, "True or False"),
    "package": (_is_text_or_none, "text or None"),
}
