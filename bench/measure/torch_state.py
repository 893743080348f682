"""What a variant may not leave changed behind: settings of torch that change what later code computes or costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from sys import float_info
from typing import Any

import torch
from torch import overrides
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext

_SEED = 0
_LEAST_NORMAL = float_info.min


def _set_benchmark(value: bool) -> None:  # noqa: FBT001  # a setter like torch's own
    torch.backends.cudnn.benchmark = value


def _benchmark() -> bool:
    return bool(torch.backends.cudnn.benchmark)


def _set_mkldnn(value: bool) -> None:  # noqa: FBT001  # a setter like torch's own
    torch.backends.mkldnn.enabled = value  # type: ignore[assignment]  # a property in all but name


def _mkldnn() -> bool:
    return bool(torch.backends.mkldnn.enabled)


def _flushes_denormal() -> bool:
    """Torch cannot be asked; a number that is too small to be normal can."""
    return _LEAST_NORMAL / 2 == 0.0


def _function_modes() -> tuple[Any, ...]:
    """Without that of the default device, which is a setting of its own."""
    stack = overrides._get_current_function_mode_stack()  # noqa: SLF001  # torch has no public name for it
    return tuple(mode for mode in stack if not isinstance(mode, DeviceContext))


def _set_function_modes(modes: tuple[Any, ...]) -> None:
    later = overrides._get_current_function_mode_stack()  # noqa: SLF001
    for _ in later:
        overrides._pop_mode()  # noqa: SLF001
    for mode in [*(mode for mode in later if isinstance(mode, DeviceContext)), *modes]:
        overrides._push_mode(mode)  # noqa: SLF001


def _dispatch_modes() -> tuple[Any, ...]:
    return tuple(_python_dispatch._get_current_dispatch_mode_stack())  # noqa: SLF001  # no public name either


def _set_dispatch_modes(modes: tuple[Any, ...]) -> None:
    for _ in _dispatch_modes():
        _python_dispatch._pop_mode()  # noqa: SLF001
    for mode in modes:
        _python_dispatch._push_mode(mode)  # noqa: SLF001


def _autocast(device: str) -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    return {
        f"autocast on {device}": (
            partial(torch.is_autocast_enabled, device),
            partial(torch.set_autocast_enabled, device),
        ),
        f"dtype of autocast on {device}": (
            partial(torch.get_autocast_dtype, device),
            partial(torch.set_autocast_dtype, device),
        ),
    }


# How to read and how to write each setting. Modes come first: they see the calls by which others are put back.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "dispatch modes": (_dispatch_modes, _set_dispatch_modes),
    "function modes": (_function_modes, _set_function_modes),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (lambda: str(torch.get_default_device()), torch.set_default_device),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "float32 precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cuDNN benchmark": (_benchmark, _set_benchmark),
    "flash attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "efficient attention": (
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
    "math attention": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "cuDNN attention": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    **_autocast("cpu"),
    **_autocast("cuda"),
    "mkldnn": (_mkldnn, _set_mkldnn),
    "flushing of denormal numbers": (_flushes_denormal, torch.set_flush_denormal),
    "seed": (torch.initial_seed, torch.manual_seed),
}


@dataclass(frozen=True, slots=True)
class TorchState:
    """The value of every setting at one time."""

    values: dict[str, Any]

    @staticmethod
    def now() -> TorchState:
        return TorchState({name: read() for name, (read, _) in _SETTINGS.items()})

    def changes(self, later: TorchState) -> list[str]:
        """Each setting that differs, spelled ``threads from 1 to 2``."""
        return [
            f"{name} from {_spelled(value)} to {_spelled(later.values[name])}"
            for name, value in self.values.items()
            if value != later.values[name]
        ]

    def restore(self) -> None:
        """Set again what differs now. The rest is left alone: some setters import half of torch."""
        for name, (read, write) in _SETTINGS.items():
            if read() != self.values[name]:
                write(self.values[name])


def _spelled(value: Any) -> str:
    """Of a stack of modes their types."""
    if isinstance(value, tuple):
        return ", ".join(type(each).__name__ for each in value) or "none"
    return str(value)


@contextmanager
def kept() -> Iterator[TorchState]:
    """Seed torch, give the state, and put it back at the end, whatever happened."""
    torch.manual_seed(_SEED)
    state = TorchState.now()
    try:
        yield state
    finally:
        state.restore()
