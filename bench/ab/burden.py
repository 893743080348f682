"""An engine whose variants do real work beside their own: what the self-test of the gate has to find.

The extra work is a slice of the same attention: the same variant, built for the first queries and keys of one head, its
result thrown away. With a backward, so is the backward of the slice, in that of the whole. Nothing is scaled
afterwards. Which work is asked for comes from the environment, since a worker imports its engine by name.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from bench.sweep import engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from variants._contract import Attend, Variant, Workload

ENGINE = __name__
VARIABLE = "ATTENTION_BENCH_BURDEN"


class Burden(msgspec.Struct, frozen=True, kw_only=True):
    """``share``: of the pairs of queries and keys of all heads, so many are computed twice, in the first head.

    ``ballast``: of the output's bytes, so many are allocated in vain, until the backward is done where there is one.
    ``modes`` and ``lengths``: where, everywhere if empty.
    """

    share: float = 0.0
    ballast: float = 0.0
    modes: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()

    def environment(self) -> dict[str, str]:
        """What tells a worker of it."""
        return {VARIABLE: msgspec.json.encode(self).decode()}

    def weighs_on(self, workload: Workload) -> bool:
        return (not self.modes or workload.mode in self.modes) and (
            not self.lengths or workload.query_length in self.lengths
        )


def __getattr__(name: str) -> Any:
    """Whatever else an engine does, as the one of every sweep does it."""
    return getattr(engine, name)


def variant(name: str) -> Variant:
    """The variant of that name, burdened as the environment says."""
    burden = msgspec.json.decode(os.environ[VARIABLE], type=Burden)
    return burdened(engine.variant(name), burden)


def burdened(plain: Variant, burden: Burden) -> Variant:
    """The same variant, as it says of itself, which does more than it says."""

    def build(workload: Workload, parameters: Any) -> Attend:
        attend = plain.build(workload, parameters)
        if not burden.weighs_on(workload):
            return attend
        if burden.ballast:
            attend = _with_ballast(attend, burden.ballast)
        if burden.share:
            side = min(math.sqrt(burden.share * workload.heads), 1.0)
            queries, keys = (max(1, round(side * length)) for length in (workload.query_length, workload.key_length))
            part = replace(workload, heads=1, kv_heads=1, query_length=queries, key_length=keys)
            attend = _with_slice(attend, plain.build(part, parameters), queries, keys)
        return attend

    return replace(plain, build=build)


def _with_ballast(attend: Attend, share: float) -> Attend:
    def heavier(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ballast = torch.empty(max(1, round(share * query.numel())), dtype=query.dtype, device=query.device)
        output = attend(query, key, value)
        if not torch.is_grad_enabled():
            return output

        def backward(_: Tensor, kept: Tensor = ballast) -> None:
            """Holds the ballast for as long as the graph is there."""

        burdened_output: Tensor = _AlsoBackward.apply(output, backward)  # type: ignore[no-untyped-call]  # torch's
        return burdened_output

    return heavier


def _with_slice(attend: Attend, attend_slice: Attend, queries: int, keys: int) -> Attend:
    def slower(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = attend(query, key, value)
        part = query[:, :1, :queries], key[:, :1, :keys], value[:, :1, :keys]
        if not torch.is_grad_enabled():
            attend_slice(*part)
            return output
        own = [tensor.detach().requires_grad_() for tensor in part]
        extra = attend_slice(*own)

        def backward(upstream: Tensor) -> None:
            torch.autograd.grad(extra, own, upstream[:, :1, :queries], allow_unused=True)

        burdened_output: Tensor = _AlsoBackward.apply(output, backward)  # type: ignore[no-untyped-call]  # torch's
        return burdened_output

    return slower


class _AlsoBackward(torch.autograd.Function):
    """The identity, whose backward does something else as well."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, also: Callable[[Tensor], None]) -> Tensor:
        ctx.also = also
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (upstream,) = gradients
        ctx.also(upstream)
        return upstream, None
