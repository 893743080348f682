"""Attention among channels: the formula written out, and what it does not know."""

from __future__ import annotations

import math

import pytest
import torch

from tests.variants import parametrised
from tests.variants.problems import operands, run, small, square
from variants._contract import NoParameters
from variants._pattern import Pattern
from variants.channel import VARIANT


def written_out(workload, given, factor):
    """One channel at a time, on the real positions of each item alone."""
    query, key, value = (tensor.double() for tensor in given.inputs)
    kept = Pattern.of(workload, "cpu").kept
    output = torch.zeros(*query.shape, dtype=torch.float64)
    for item in range(workload.batch):
        count = workload.key_length if kept is None else int(kept[item])
        for head in range(workload.heads):
            q, k, v = (
                query[item, head, :count],
                key[item, head // workload.group, :count],
                value[item, head // workload.group],
            )
            for channel in range(workload.head_dim):
                alike = [
                    factor
                    * float(q[:, channel] @ k[:, other])
                    / math.sqrt(float(q[:, channel] @ q[:, channel]) * float(k[:, other] @ k[:, other]))
                    for other in range(workload.head_dim)
                ]
                output[item, head, :count, channel] = v[:count] @ torch.tensor(alike, dtype=torch.float64).softmax(0)
    return output


@pytest.mark.parametrize("mask", ["full", "padding:0.6"])
@pytest.mark.parametrize(("scale", "factor"), [(None, 1.0), (5.0, 5.0)])
def test_the_formula_written_out(mask, scale, factor):
    workload = small(dtype="float64", mode="fwd", mask=mask, scale=scale)
    torch.testing.assert_close(run("channel", workload).output, written_out(workload, operands(workload), factor))


def test_low_temperature_picks_the_channel_most_alike():
    workload = square(50, dtype="float64", mode="fwd", kv_heads=4, scale=1e6)
    given = operands(workload)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    given.query.copy_(given.key[..., order])
    torch.testing.assert_close(run("channel", workload, given).output, given.value[..., order])


def test_it_does_not_know_the_order_of_positions():
    workload = small(dtype="float64", mode="fwd")
    given = operands(workload)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    before = run("channel", workload, given).output
    for tensor in given.inputs:
        tensor.copy_(tensor[:, :, order].clone())
    torch.testing.assert_close(run("channel", workload, given).output, before[:, :, order])


def test_the_content_of_padding_is_never_read_and_its_outputs_are_zero():
    workload = small(mask="padding:0.5")
    given = parametrised.operands(workload)
    kept = Pattern.of(workload, "cpu").kept.tolist()
    before = parametrised.run(VARIANT, workload, NoParameters(), given)
    poisoned = parametrised.poisoned(given, kept)
    with torch.no_grad():
        for item, count in enumerate(kept):
            poisoned.query[item, :, count:] = torch.nan
            assert not before.output[item, :, count:].any()
    after = parametrised.run(VARIANT, workload, NoParameters(), poisoned)
    assert torch.equal(before.output, after.output)
    for first, second in zip(before.gradients, after.gradients, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_over_many_positions(dtype):
    parametrised.check(VARIANT, square(3000, dtype=dtype, batch=1), NoParameters())


def test_time_and_memory_are_linear():
    workload = small(batch=1)
    assert parametrised.memory_exponent(VARIANT, workload, NoParameters(), (2048, 4096)) < 1.05
    flops = [VARIANT.flops(square(length), NoParameters()) for length in (1000, 2000)]
    assert flops[1] == 2 * flops[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mask": "causal"}, "not causal"),
        ({"mask": "window:7"}, "not causal"),
        ({"mask": "alibi"}, "between channels"),
        ({"mask": "band:5"}, "no weights between positions"),
        ({"key_length": 50}, "lengths must be equal, got 100 and 50"),
        ({"value_head_dim": 8}, "got 8 and 16"),
    ],
)
def test_what_it_cannot_do_it_says(changes, said):
    (reason,) = VARIANT.obstacles(small(**changes), NoParameters())
    assert said in reason
