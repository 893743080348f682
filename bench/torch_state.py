"""What a variant may not leave changed behind: torch's global state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

_SEED = 0
_SDPA_BACKENDS: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
)


@dataclass(frozen=True, slots=True)
class TorchState:
    """Global settings of torch that change what later code computes, or how fast."""

    threads: int
    default_dtype: torch.dtype
    deterministic: bool
    grad_mode: bool
    inference_mode: bool
    float32_precision: str
    cudnn_benchmark: bool
    sdpa_backends: tuple[bool, ...]
    default_device: str
    seed: int

    @staticmethod
    def now() -> TorchState:
        return TorchState(
            threads=torch.get_num_threads(),
            default_dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            grad_mode=torch.is_grad_enabled(),
            inference_mode=torch.is_inference_mode_enabled(),
            float32_precision=torch.get_float32_matmul_precision(),
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            sdpa_backends=tuple(enabled() for enabled, _ in _SDPA_BACKENDS),
            default_device=str(torch.get_default_device()),
            seed=torch.initial_seed(),
        )

    def changes(self, later: TorchState) -> list[str]:
        """Each setting that differs, spelled ``threads from 1 to 2``."""
        after = asdict(later)
        return [
            f"{name.replace('_', ' ')} from {value} to {after[name]}"
            for name, value in asdict(self).items()
            if value != after[name]
        ]

    def restore(self) -> None:
        """Set all of it again."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.default_dtype)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.set_grad_enabled(self.grad_mode)
        torch.set_float32_matmul_precision(self.float32_precision)
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        for (_, enable), enabled in zip(_SDPA_BACKENDS, self.sdpa_backends, strict=True):
            enable(enabled)
        if str(torch.get_default_device()) != self.default_device:
            torch.set_default_device(self.default_device)
        torch.manual_seed(self.seed)


@contextmanager
def kept() -> Iterator[TorchState]:
    """Seed torch, give the state, and put it back at the end, whatever happened."""
    torch.manual_seed(_SEED)
    state = TorchState.now()
    try:
        yield state
    finally:
        state.restore()
