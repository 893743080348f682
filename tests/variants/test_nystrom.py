"""Landmarks: the limit where they are all positions, and that more of them, and more steps, are nearer to exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.measure.call import Operands
from tests.variants import parametrised
from tests.variants.parametrised import operands, run, square
from variants import _nystrom, nystrom
from variants._contract import Workload
from variants._nystrom import Parameters
from variants._pattern import Pattern

VARIANT = nystrom.VARIANT
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=100, key_length=100, head_dim=8, mode="fwd_bwd")
PADDED = replace(BASE, mask="padding:0.5")
FEW = Parameters(landmarks=12)


@st.composite
def cases(draw):
    group, kv_heads = draw(st.sampled_from((1, 3))), draw(st.integers(1, 2))
    query_length = draw(st.integers(1, 90))
    workload = Workload(
        batch=draw(st.integers(1, 3)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        query_length=query_length,
        key_length=draw(st.one_of(st.just(query_length), st.integers(1, 90))),
        head_dim=draw(st.sampled_from((1, 8))),
        value_head_dim=draw(st.sampled_from((None, 5))),
        scale=draw(st.sampled_from((None, 0.3))),
        dtype=draw(st.sampled_from(("float32", "bfloat16", "float16"))),  # the inverse enlarges what float64 rounds
        mask=draw(st.sampled_from(("full", "padding:0.1", "padding:0.5"))),
        mode=draw(st.sampled_from(("fwd", "fwd_bwd"))),
        seed=draw(st.integers(0, 3)),
    )
    return workload, Parameters(draw(st.integers(1, 40)), draw(st.integers(0, 8)))


@given(cases())
def test_it_computes_its_formula(case):
    parametrised.check(VARIANT, *case)


@pytest.mark.parametrize("mask", ["full", "padding:0.5"])
@pytest.mark.parametrize("landmarks", [30, 1000])
def test_as_many_landmarks_as_positions_are_exact_once_the_iteration_is_done(mask, landmarks):
    workload = replace(square(BASE, 30), mask=mask, dtype="float64", mode="fwd")
    given = operands(workload)
    for iterations, agrees in ((60, True), (2, False)):
        output = run(VARIANT, workload, Parameters(landmarks, iterations), given).output
        assert torch.allclose(output, parametrised.exactly(workload, given), atol=1e-5) == agrees


def test_the_iteration_finds_the_pseudo_inverse():
    generator = torch.Generator().manual_seed(0)
    for shape in ((2, 3, 9, 9), (2, 3, 9, 5), (2, 3, 5, 9)):
        matrix = (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(dim=-1)
        inverse = _nystrom.pseudo_inverse(matrix, 60)
        torch.testing.assert_close(inverse, torch.linalg.pinv(matrix), rtol=1e-6, atol=1e-6)


def test_the_iteration_starts_from_each_matrix_alone():
    generator = torch.Generator().manual_seed(0)
    matrix = (3 * torch.randn(2, 3, 9, 9, generator=generator, dtype=torch.float64)).softmax(dim=-1)
    alone = torch.stack([torch.stack([_nystrom.pseudo_inverse(head, 6) for head in item]) for item in matrix])
    torch.testing.assert_close(_nystrom.pseudo_inverse(matrix, 6), alone)


@pytest.mark.parametrize(
    ("worse", "better"),
    [(Parameters(8), Parameters(32)), (Parameters(32), Parameters(128)), (Parameters(32, 1), Parameters(32))],
    ids=str,
)
def test_more_is_nearer_to_exact(worse, better):
    workloads = [replace(square(BASE, 400), mode="fwd", seed=seed) for seed in range(4)]
    errors = [
        sum(parametrised.relative_error(VARIANT, workload, parameters) for workload in workloads)
        for parameters in (worse, better)
    ]
    assert errors[1] < 0.9 * errors[0]


def test_padding_is_never_read_and_makes_no_landmark():
    given = operands(PADDED)
    kept = Pattern.of(PADDED).kept.tolist()
    dirty = parametrised.poisoned(given, kept)
    query = given.query.detach().clone()
    for item, count in enumerate(kept):
        query[item, :, count:] += 9
    dirty = Operands(query.requires_grad_(), dirty.key, dirty.value, dirty.upstream)
    before, after = (run(VARIANT, PADDED, FEW, some) for some in (given, dirty))
    for item, count in enumerate(kept):
        assert torch.equal(before.output[item, :, :count], after.output[item, :, :count])
        for gradient in after.gradients[1:]:
            assert gradient.isfinite().all()
            assert not gradient[item, :, count:].any()


def test_an_item_is_what_it_is_without_its_padding():
    workload = replace(PADDED, mode="fwd")
    given = operands(workload)
    output = run(VARIANT, workload, FEW, given).output
    for item, kept in enumerate(Pattern.of(workload).kept.tolist()):
        alone = replace(square(workload, kept), mask="full", batch=1)
        cut = Operands(*(tensor[item : item + 1, :, :kept] for tensor in (*given.inputs, given.upstream)))
        torch.testing.assert_close(output[item, :, :kept], run(VARIANT, alone, FEW, cut).output[0])


def test_memory_is_linear_in_training():
    workload = Workload(heads=1, kv_heads=1, head_dim=16, mode="fwd_bwd")
    assert parametrised.memory_exponent(VARIANT, workload, Parameters(), (4096, 8192, 16384)) <= 1.1


def test_flops():
    one = replace(BASE, batch=1, mode="fwd", value_head_dim=5)
    iteration = 6 * 4 * 12**3
    assert nystrom.flops(one, FEW) == 2 * 4 * ((2 * 100 * 12 + 12 * 12) * (8 + 5) + iteration)
    assert nystrom.flops(PADDED, FEW) < nystrom.flops(BASE, FEW)


@pytest.mark.parametrize(
    ("mask", "word"),
    [
        ("causal", "not causal"),
        ("window:9", "not causal"),
        ("prefix:9", "not causal"),
        ("band:9", "means over positions"),
        ("document:2", "means over positions"),
        ("bigbird:16x2x1", "means over positions"),
        ("softcap:2", "score"),
        ("alibi", "score"),
    ],
)
def test_masks_that_it_refuses(mask, word):
    (reason,) = VARIANT.obstacles(replace(BASE, mask=mask), Parameters())
    assert mask in reason
    assert word in reason


@pytest.mark.parametrize("wrong", [{"landmarks": 0}, {"iterations": -1}])
def test_parameters_that_mean_nothing(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        Parameters(**wrong)
