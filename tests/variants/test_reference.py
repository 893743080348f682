"""The formula that all others are held against, itself against loops over single numbers."""

from __future__ import annotations

import math

import pytest
import torch

from tests.variants.problems import operands, small
from variants._contract import Workload
from variants._pattern import Pattern
from variants._reference import exact, expand_heads, masked_softmax


def by_hand(query, key, value, workload):
    """Exact attention, one number at a time, for the terms named in its mask."""
    slopes = [2.0 ** (-8 * (head + 1) / workload.heads) for head in range(workload.heads)]
    allowed = Pattern.of(workload).dense()[0][:, 0].expand(workload.batch, -1, -1).tolist()
    output = torch.zeros(workload.batch, workload.heads, workload.query_length, workload.value_dim, dtype=torch.float64)
    for item in range(workload.batch):
        for head in range(workload.heads):
            shared = head // (workload.heads // workload.kv_heads)
            for i in range(workload.query_length):
                weights = {}
                for j in range(workload.key_length):
                    if not allowed[item][i][j]:
                        continue
                    pair = zip(query[item, head, i].tolist(), key[item, shared, j].tolist(), strict=True)
                    score = sum(a * b for a, b in pair) / math.sqrt(workload.head_dim)
                    if "softcap:2" in workload.mask:
                        score = 2 * math.tanh(score / 2)
                    if "alibi" in workload.mask:
                        score -= slopes[head] * abs(i + workload.key_length - workload.query_length - j)
                    weights[j] = math.exp(score)
                for j, weight in weights.items():
                    output[item, head, i] += weight / sum(weights.values()) * value[item, shared, j]
    return output


@pytest.mark.parametrize("mask", ["full", "causal", "softcap:2+alibi+causal", "window:3+padding:0.5"])
@pytest.mark.parametrize("lengths", [(6, 6), (4, 9), (9, 4)])
def test_exact_attention_one_number_at_a_time(mask, lengths):
    workload = small(mask=mask, query_length=lengths[0], key_length=lengths[1], head_dim=5, dtype="float64")
    given = operands(workload).inputs
    right = by_hand(*given, workload)
    for rows in (torch.arange(lengths[0]), torch.tensor([lengths[0] - 1, 0])):
        torch.testing.assert_close(
            exact(*given, workload=workload, rows=rows), right[:, :, rows], rtol=1e-12, atol=1e-12
        )


def test_the_scale_can_be_chosen():
    workload = small(scale=0.5, dtype="float64")
    query, key, value = operands(workload).inputs
    rows = torch.arange(workload.query_length)
    usual = exact(query * 0.5 * workload.head_dim**0.5, key, value, workload=small(dtype="float64"), rows=rows)
    torch.testing.assert_close(exact(query, key, value, workload=workload, rows=rows), usual)


def test_consecutive_query_heads_share_a_key_head():
    workload = Workload(heads=6, kv_heads=2, query_length=1, key_length=1, head_dim=1)
    assert expand_heads(torch.tensor([10.0, 20.0]).view(1, 2, 1, 1), workload).flatten().tolist() == [10] * 3 + [20] * 3
    key = torch.ones(1, 6, 1, 1)
    assert expand_heads(key, Workload(heads=6, kv_heads=6)) is key


def test_a_row_that_may_see_nothing_is_zero_and_has_no_gradient():
    scores = torch.randn(3, 4, requires_grad=True)
    allowed = torch.tensor([[True, True, False, True], [False] * 4, [False, False, True, False]])
    weights = masked_softmax(scores, allowed)
    (gradient,) = torch.autograd.grad(weights, scores, torch.randn(3, 4))
    assert gradient.isfinite().all()
    assert not weights[~allowed].any()
    assert not gradient[~allowed].any()
    torch.testing.assert_close(weights.sum(dim=-1), torch.tensor([1.0, 0.0, 1.0]))
