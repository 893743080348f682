"""The attentions, one file each, and how they are found. See ``docs/add-a-variant.md``."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from variants._contract import Variant

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

ENTRY_POINT_GROUP = "attention_bench.variants"


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
        yield source, loaded if isinstance(loaded, Variant) else _variant_of(loaded, source)


def _variant_of(module: ModuleType, source: str) -> Variant:
    variant = getattr(module, "VARIANT", None)
    if not isinstance(variant, Variant):
        raise VariantError(f"{source} has no VARIANT of type variants._contract.Variant; see docs/add-a-variant.md")
    return variant
