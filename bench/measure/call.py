"""What one call is in each mode, and which tensors it works on.

| mode      | before the clock starts | under the clock          |
|-----------|-------------------------|--------------------------|
| `fwd`     |                         | forward, without autograd |
| `bwd`     | a fresh forward         | backward                 |
| `fwd_bwd` |                         | forward and backward     |

Gradients are returned, never accumulated, so there are none to clear between calls.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import sys
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import torch

from bench.measure import inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from variants._contract import Attend, Mode, Workload

_PADDING_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Operands:
    """Query ``(B, H, Nq, D)``, key ``(B, Hkv, Nk, D)``, value ``(B, Hkv, Nk, Dv)`` and the gradient of the output."""

    query: Tensor
    key: Tensor
    value: Tensor
    upstream: Tensor
    padding: Tensor | None = field(default=None, repr=False)

    @staticmethod
    def of(workload: Workload) -> Operands:
        """The inputs that the workload asks for. Nobody but us may touch them: variants get :meth:`fresh` ones."""
        return _made(replace(workload, mask="full", mode="fwd", scale=None))

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def fresh(self, *, differentiable: bool, padding_bytes: int = 0) -> Operands:
        """The same values at new addresses, behind ``padding_bytes`` that stay allocated."""
        padding = torch.empty(padding_bytes, dtype=torch.uint8, device=self.query.device) if padding_bytes else None
        query, key, value = (tensor.detach().clone().requires_grad_(differentiable) for tensor in self.inputs)
        return Operands(query, key, value, self.upstream.detach().clone(), padding)

    def reverse_in_place(self) -> None:
        """Overwrite the inputs, at their addresses, with their own values in reverse order of positions.

        Behind torch's back, so that results kept by address or version are stale.
        """
        for tensor in self.inputs:
            tensor.data.copy_(tensor.detach().flip(2))


@cache
def load_backward() -> None:
    """Torch imports what a backward needs at the first one: half a second that is no variant's set-up."""
    number = torch.ones(1, requires_grad=True)
    torch.autograd.grad(2 * number, number, torch.ones(1))


@lru_cache(maxsize=1)
def _made(workload: Workload) -> Operands:
    """Masks and modes of a shape have the same inputs, and come one after the other."""
    return Operands(*inputs.make(workload))


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave: the whole output, and the gradients of query, key and value where the mode has them."""

    output: Tensor
    gradients: tuple[Tensor | None, ...] | None


@dataclass(frozen=True, slots=True)
class Call:
    """One attention bound to its operands in one mode."""

    attend: Attend
    operands: Operands
    mode: Mode
    touches: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    @property
    def differentiates(self) -> bool:
        return self.mode != "fwd"

    def forward(self) -> Tensor:
        """The output, ``(B, H, Nq, Dv)``; with a graph where the mode has a backward."""
        return self.attend(*self.operands.inputs)

    def backward(self, output: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value; None for an input that the output does not depend on."""
        return torch.autograd.grad(output, self.operands.inputs, self.operands.upstream, allow_unused=True)

    def whole(self) -> Result:
        """Forward, and backward where the mode has one."""
        with torch.set_grad_enabled(self.differentiates):
            output = self.forward()
            return Result(output, self.backward(output) if self.differentiates else None)

    def prepare(self) -> Tensor | None:
        """What the timed part needs: in ``bwd`` the output of a fresh forward."""
        return self.forward() if self.mode == "bwd" else None

    def timed(self) -> Callable[[Tensor | None], object]:
        """What is under the clock, with nothing of ours around it."""
        attend, backward = self.attend, self.backward
        query, key, value = self.operands.inputs
        match self.mode:
            case "fwd":
                return lambda _: attend(query, key, value)
            case "bwd":
                return backward  # type: ignore[return-value]  # `prepare` has given it the output
            case "fwd_bwd":
                return lambda _: backward(attend(query, key, value))

    def touch(self) -> Iterator[None]:
        """At every step, other numbers in one corner of each input than in any call before.

        A variant that keeps results by content then works anew in every call. On a CPU the numbers are written behind
        torch's back: an operator would cool the caches for calls of some microseconds. Results that are kept by address
        or version are therefore stale, which the check after timing finds.
        """
        if self.operands.query.device.type == "cpu" and sys.byteorder == "little":
            return _touched_in_memory(self.operands.inputs, self.touches)
        return _touched_by_operators(self.operands.inputs, self.touches)


def _touched_in_memory(tensors: Sequence[Tensor], counts: Iterator[int]) -> Iterator[None]:
    """The last byte of the first two numbers, which leaves a normal number a finite one in every dtype."""
    places = [
        [ctypes.c_uint8.from_address(tensor.data_ptr() + item * tensor.element_size()) for item in range(2)]
        for tensor in tensors
        if tensor.numel() > 1
    ]
    for count in counts:
        low, high = count & 255, count >> 8 & 255
        for first, second in places:
            first.value, second.value = low, high
        yield


def _touched_by_operators(tensors: Sequence[Tensor], counts: Iterator[int]) -> Iterator[None]:
    spots = [tensor.detach()[:1, :1, :1, :1] for tensor in tensors]
    for count in counts:
        with torch.no_grad():
            for spot in spots:
                spot.fill_(math.sin(count))
        yield


def scatterer(attend: Attend, base: Operands, mode: Mode) -> Callable[[], Call]:
    """Calls on the values of ``base`` at ever new addresses, behind a random padding.

    Where tensors lie moves the time of identical code by several percent: it must be averaged, not measured.
    """
    draw, touches = random.Random(0), itertools.count()  # noqa: S311  # no secret

    def scattered() -> Call:
        padding_bytes = 64 * draw.randrange(1, _PADDING_BYTES // 64)
        return Call(attend, base.fresh(differentiable=mode != "fwd", padding_bytes=padding_bytes), mode, touches)

    return scattered
