from __future__ import annotations

import pytest
import torch

import variants
from bench.measure import oracle, rows
from bench.measure.attention_map import BLOCKS, attention_map
from bench.measure.call import Operands
from variants._contract import Workload

VARIANTS = variants.find()


def drawn(name, **shape):
    workload = Workload(**({"heads": 2, "kv_heads": 2, "query_length": 256, "key_length": 256, "head_dim": 32} | shape))
    variant = VARIANTS[name]
    problem = oracle.Problem(variant, workload, variant.parameters())
    return attention_map(problem, oracle.truth(problem, Operands.of(workload), rows.sample(workload, 4)))


def digits(found):
    return torch.tensor([[int(digit, 36) for digit in row] for row in found])


def test_a_causal_map_has_nothing_above_its_diagonal():
    found = digits(drawn("sdpa_flash", mask="causal"))
    assert found.shape == (BLOCKS, BLOCKS)
    assert found.triu(1).sum() == 0
    assert (found.amax(dim=1) == 35).all()


def test_a_window_has_only_its_band():
    found = digits(drawn("sdpa_flash", mask="window:32"))
    assert found.triu(1).sum() == 0
    assert found.tril(-5).sum() == 0
    assert found.diagonal()[1:].min() > 0


def test_a_sparse_variant_leaves_blocks_out_and_equal_weights_do_not():
    assert (digits(drawn("hard")) > 0).sum(dim=1).tolist() == [1] * BLOCKS
    assert digits(drawn("uniform")).min() >= 33  # blocks of ten and of eleven keys


@pytest.mark.parametrize(
    "shape",
    [{"mode": "bwd"}, {"query_length": 128, "key_length": 128}, {"key_length": 2048}, {"head_dim": 16}],
    ids=str,
)
def test_elsewhere_there_is_none(shape):
    assert drawn("sdpa_flash", **shape) is None
