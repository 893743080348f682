from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.errors import WrongUsageError
from bench.measure.inputs import make
from variants._contract import Workload

SMALL = Workload(batch=2, heads=4, kv_heads=2, query_length=24, key_length=40, head_dim=8, value_head_dim=6)


def same(a, b):
    return all(torch.equal(left, right) for left, right in zip(a, b, strict=True))


def test_shapes_follow_the_workload():
    made = make(SMALL)
    assert made.query.shape == (2, 4, 24, 8)
    assert made.key.shape == (2, 2, 40, 8)
    assert made.value.shape == (2, 2, 40, 6)
    assert made.upstream.shape == (2, 4, 24, 6)
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in made)


def test_the_same_bytes_whatever_mask_mode_and_torch_seed():
    first = make(SMALL)
    torch.manual_seed(99)
    assert same(first, make(replace(SMALL, mask="causal", mode="fwd_bwd", scale=2.0)))


def test_drawing_leaves_torchs_own_generator_alone():
    before = torch.get_rng_state()
    make(SMALL)
    assert torch.equal(before, torch.get_rng_state())


def test_another_seed_gives_other_values():
    assert not torch.equal(make(SMALL).query, make(replace(SMALL, seed=1)).query)


def test_tensors_of_one_shape_differ():
    made = make(replace(SMALL, kv_heads=4, query_length=40, value_head_dim=None))
    assert not torch.equal(made.query, made.key)
    assert not torch.equal(made.key, made.value)
    assert not torch.equal(made.query, made.upstream)


def test_fewer_key_heads_leave_the_query_as_it_is():
    assert torch.equal(make(SMALL).query, make(replace(SMALL, kv_heads=4)).query)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_round_the_same_values(dtype):
    kind = getattr(torch, dtype)
    assert same([tensor.to(kind) for tensor in make(SMALL)], make(replace(SMALL, dtype=dtype)))


def test_values_are_standard_normal():
    query = make(replace(SMALL, query_length=4096)).query
    assert abs(query.mean()) < 0.02
    assert abs(query.std() - 1) < 0.02


def test_unknown_inputs_are_refused_with_the_known_ones():
    with pytest.raises(WrongUsageError, match=r"'nromal' is unknown, .* normal, minilm, .*; did you mean 'normal'\?"):
        make(replace(SMALL, inputs="nromal"))
