"""What a variant may not leave changed behind: settings of torch that change what later code computes or costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_SEED = 0


def _set_benchmark(value: bool) -> None:  # noqa: FBT001  # a setter like torch's own
    torch.backends.cudnn.benchmark = value


def _benchmark() -> bool:
    return bool(torch.backends.cudnn.benchmark)


# how to read and how to write each setting
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
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
            f"{name} from {value} to {later.values[name]}"
            for name, value in self.values.items()
            if value != later.values[name]
        ]

    def restore(self) -> None:
        """Set again what differs now. The rest is left alone: some setters import half of torch."""
        for name, (read, write) in _SETTINGS.items():
            if read() != self.values[name]:
                write(self.values[name])


@contextmanager
def kept() -> Iterator[TorchState]:
    """Seed torch, give the state, and put it back at the end, whatever happened."""
    torch.manual_seed(_SEED)
    state = TorchState.now()
    try:
        yield state
    finally:
        state.restore()
