"""A small picture of who attends to whom, kept in the record: the weight of a block of keys, for some queries.

Every attention is linear in V. Where V tells, in channel b, whether a key lies in block b, channel b of the output is
the weight that a query gives to that block. The variant's own formula is asked, to which the oracle has held it, with
the routing that it chose; so the variant itself is not called once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from bench.measure.oracle import Problem, Truth

BLOCKS = 24
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SHORTEST, _LONGEST = 256, 1024


def attention_map(problem: Problem, truth: Truth) -> list[str] | None:
    """Of the first head: a string for each of 24 evenly spread queries, a digit of base 36 for each of 24 key blocks.

    A digit is 35 times the root of the block's weight over the largest of its row; a weight below zero counts as none.
    None for other modes than ``fwd``, lengths outside 256 to 1024, fewer than 24 channels, and unused values.
    """
    workload = problem.workload
    lengths = workload.query_length, workload.key_length
    if workload.mode != "fwd" or min(lengths) < _SHORTEST or max(lengths) > _LONGEST:
        return None
    if "value" not in problem.variant.uses or workload.value_dim < BLOCKS:
        return None
    query, key, value = (tensor.detach().double() for tensor in truth.operands.inputs)
    rows = torch.linspace(0, workload.query_length - 1, BLOCKS).round().long()
    with torch.no_grad():
        output = problem.reference((query, key, _indicators(value)), rows=rows, routing=truth.routing)
    return [_digits(row) for row in output[0, 0, :, :BLOCKS].cpu()]


def _indicators(value: Tensor) -> Tensor:
    """Like ``value``, with a one in channel b for the keys of block b, and zeros elsewhere."""
    length = value.shape[2]
    block = torch.arange(length, device=value.device) * BLOCKS // length
    told = torch.zeros_like(value)
    told[:, :, torch.arange(length, device=value.device), block] = 1
    return told


def _digits(weights: Tensor) -> str:
    weights = weights.clamp(min=0)
    largest = float(weights.max())
    if not 0 < largest < float("inf"):
        return _DIGITS[0] * len(weights)
    return "".join(_DIGITS[round(35 * (float(weight) / largest) ** 0.5)] for weight in weights)
