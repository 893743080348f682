"""Positional attention: whatever query and key hold, and the two forms of it against each other."""

from __future__ import annotations

import pytest
import torch

from tests.variants import parametrised
from tests.variants.problems import operands, small, square
from variants import factorized_positional, positional
from variants._pattern import Pattern

MASKS = ("full", "causal+padding:0.6", "softcap:1+alibi", "document:3+window:9")
BOTH = pytest.mark.parametrize("module", [positional, factorized_positional], ids=["positional", "factorized"])


def written_out(workload, scores, value):
    """softmax of scores ``(H, Nq, Nk)`` one row at a time, times values, in float64."""
    pattern = Pattern.of(workload, "cpu")
    allowed, bias = pattern.dense()
    allowed = allowed.expand(workload.batch, workload.heads, -1, -1)
    if pattern.mask.softcap is not None:
        scores = pattern.mask.softcap * torch.tanh(scores / pattern.mask.softcap)
    if bias is not None:
        scores = scores + bias[0]
    shape = workload.batch, workload.heads, workload.query_length
    output = torch.zeros(*shape, workload.value_dim, dtype=torch.float64)
    for item, head, row in torch.cartesian_prod(*map(torch.arange, shape)).tolist():
        seen = allowed[item, head, row].nonzero().flatten()
        if len(seen):
            output[item, head, row] = scores[head, row, seen].softmax(0) @ value[item, head // workload.group, seen]
    return output


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_table_of_scores(mask, batch):
    workload = small(query_length=20, key_length=30, mask=mask, dtype="float64", mode="fwd", batch=batch)
    scores = positional.table(workload, positional.Parameters())
    right = written_out(workload, scores, operands(workload).value)
    torch.testing.assert_close(parametrised.run(positional.VARIANT, workload, positional.Parameters()).output, right)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rank", [1, 5, 1000])
def test_a_product_of_two_factors(mask, rank):
    workload = small(query_length=20, key_length=30, mask=mask, dtype="float64", mode="fwd")
    parameters = factorized_positional.Parameters(rank=rank)
    queries, keys = factorized_positional.factors(workload, parameters)
    assert queries.shape == (4, 20, min(rank, 20))
    assert keys.shape == (2, 30, min(rank, 20))
    right = written_out(workload, queries @ keys.repeat_interleave(2, dim=0).mT, operands(workload).value)
    result = parametrised.run(factorized_positional.VARIANT, workload, parameters)
    torch.testing.assert_close(result.output, right)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("learned", [False, True])
def test_full_rank_gives_any_table(monkeypatch, mask, learned):
    workload = square(300, mask=mask, heads=2, kv_heads=2)
    table = torch.randn(2, 300, 300, generator=torch.Generator().manual_seed(0))
    factors = table.clone(), torch.eye(300).expand(2, -1, -1).clone()
    for tensor in (table, *factors):
        tensor.requires_grad_(learned)
    monkeypatch.setattr(positional, "table", lambda workload, parameters: table)
    monkeypatch.setattr(factorized_positional, "factors", lambda workload, parameters: factors)
    first = positional.Parameters(learned=learned)
    second = factorized_positional.Parameters(rank=300, learned=learned)
    result = parametrised.run(positional.VARIANT, workload, first)
    other = parametrised.run(factorized_positional.VARIANT, workload, second)
    torch.testing.assert_close(result.output, other.output)
    torch.testing.assert_close(result.gradients[2], other.gradients[2])
    if learned:
        given = parametrised.operands(workload)
        (of_table,) = torch.autograd.grad(positional.build(workload, first)(*given.inputs), (table,), given.upstream)
        of_factors = torch.autograd.grad(
            factorized_positional.build(workload, second)(*given.inputs), factors, given.upstream
        )
        torch.testing.assert_close(of_table, of_factors[0])
        torch.testing.assert_close(of_table.mT @ table.detach(), of_factors[1], rtol=1e-4, atol=1e-4)


@BOTH
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("mask", ["full", "causal+padding:0.6"])
def test_training_the_scores_changes_no_result(module, learned, mask):
    parametrised.check(module.VARIANT, small(mask=mask), module.Parameters(learned=learned))


@BOTH
def test_the_gradient_of_learned_scores_is_right(monkeypatch, module):
    workload = small(query_length=6, key_length=9, mask="causal+padding:0.6", dtype="float64")
    parameters = module.Parameters(learned=True)
    name = "table" if module is positional else "factors"
    made = getattr(module, name)(workload, parameters)
    leaves = (made,) if isinstance(made, torch.Tensor) else made
    given = operands(workload)
    monkeypatch.setattr(module, name, lambda workload, parameters: made)
    attend = module.build(workload, parameters)
    scores = made if module is positional else made[0] @ made[1].repeat_interleave(2, dim=0).mT
    right = torch.autograd.grad(written_out(workload, scores, given.value), leaves, given.upstream)
    for gradient, one in zip(torch.autograd.grad(attend(*given.inputs), leaves, given.upstream), right, strict=True):
        torch.testing.assert_close(gradient, one)


@BOTH
def test_query_and_key_are_never_read(module):
    workload = small(mode="fwd")
    given = operands(workload)
    attend = module.build(workload, module.Parameters())
    nothing = torch.full_like(given.query, torch.nan), torch.full_like(given.key, torch.nan)
    assert torch.equal(attend(*given.inputs), attend(*nothing, given.value))


def test_factors_hold_no_table():
    workload = small(batch=1, heads=2, kv_heads=1)
    parameters = factorized_positional.Parameters(rank=8)
    assert parametrised.memory_exponent(factorized_positional.VARIANT, workload, parameters, (1024, 2048)) < 1.3


@BOTH
def test_scores_of_a_head_are_spread_as_scaled_products_are(module):
    workload = square(400, mode="fwd")
    made = positional.table(workload, positional.Parameters())
    if module is factorized_positional:
        queries, keys = module.factors(workload, module.Parameters())
        made = queries @ keys.repeat_interleave(2, dim=0).mT
    assert float(made.std()) == pytest.approx(1, abs=0.1)
    assert not torch.equal(made[0], made[1])


def test_a_rank_below_one_is_refused():
    (reason,) = factorized_positional.obstacles(small(), factorized_positional.Parameters(rank=0))
    assert reason == "rank must be at least 1, got 0"
