"""What a worker does with torch: the one place where processes meet measuring. Tests give workers another engine."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

import msgspec
import torch

import variants
from bench.errors import WrongUsageError
from bench.fidelity.attempt import attempt
from bench.machine import host
from bench.measure.case import check, measure, time_in_turns
from bench.measure.ceilings import measure_ceilings
from bench.record import Host, Settings, Source
from bench.traffic import least_traffic_bytes
from variants import VariantError
from variants._contract import Variant

__all__ = [
    "attempt",
    "check",
    "choose_device",
    "every_variant",
    "least_traffic_bytes",
    "measure",
    "prepare",
    "probe",
    "time_in_turns",
    "variant",
]


def every_variant() -> dict[str, Variant]:
    """Those that are built in and those of installed packages, by name.

    Raises:
        VariantError: one of them cannot be used.

    """
    return variants.find()


def variant(name: str) -> Variant:
    """One of them, without importing the others where it is built in.

    Raises:
        VariantError: there is none of that name.

    """
    module = f"{variants.__name__}.{name}"
    if name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(module):
        found = importlib.import_module(module).VARIANT
        assert isinstance(found, Variant)  # noqa: S101  # a file of ours
        return found
    every = variants.find()
    if name not in every:
        raise VariantError(f"variant {name!r} is unknown")
    return every[name]


def choose_device(device: str) -> str:
    """``cpu``, or ``cuda`` with its index where one was named; ``auto`` means CUDA where there is some.

    Raises:
        WrongUsageError: there is no such device.

    """
    count = torch.cuda.device_count()
    if device == "auto":
        return "cuda" if count else "cpu"
    _, _, index = device.partition(":")
    if device.startswith("cuda") and int(index or 0) >= count:
        found = f"{count} CUDA device{'s' if count > 1 else ''}" if count else "no CUDA device"
        raise WrongUsageError(f"--device {device}: found {found} here; use --device cpu or another index")
    return device


def prepare(device: str, settings: Settings) -> None:
    """Put torch into the state in which every case begins."""
    torch.set_num_threads(settings.threads)
    # torch.compile opens a progress bar, which leaves a thread behind where tqdm is installed: no doing of a variant's.
    torch.hub.tqdm.monitor_interval = 0  # type: ignore[attr-defined]  # or its own stand-in
    torch.set_float32_matmul_precision(settings.float32_precision)
    if device.startswith("cuda"):
        torch.cuda.set_device(device if ":" in device else 0)


def probe(device: str, dtypes: Sequence[str], settings: Settings) -> tuple[Host, Source]:
    """The machine with its ceilings, measured on the threads that cases get, and the source."""
    prepare(device, settings)
    described = msgspec.structs.replace(host.describe_host(device), ceilings=measure_ceilings(device, dtypes))
    return described, host.describe_source()
