from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.profiler import profile

from bench.measure.call import Call
from tests.variants import parametrised
from tests.variants.parametrised import operands, run, square
from variants import _linformer, linformer
from variants._contract import Workload
from variants._linformer import Matrices, Parameters
from variants._pattern import Pattern

VARIANT = linformer.VARIANT
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=100, key_length=100, head_dim=8, mode="fwd_bwd")
PADDED = replace(BASE, mask="padding:0.5")
KINDS = [
    Parameters(rank=12),
    Parameters(rank=12, projection="random"),
    Parameters(rank=12, projection="random", sharing="headwise"),
    Parameters(rank=12, projection="learned", sharing="none"),
    Parameters(rank=12, projection="learned"),
]


@st.composite
def cases(draw):
    group, kv_heads = draw(st.sampled_from((1, 3))), draw(st.integers(1, 2))
    query_length = draw(st.integers(1, 90))
    kind = draw(st.sampled_from(KINDS))
    # random matrices lengthen keys and values; where there is no rounding of the formula to compare with (in float64,
    # and for gradients that are zero for want of a second key), the oracle goes by the lengths before
    pools = kind.projection == "pooling"
    parameters = replace(kind, rank=draw(st.integers(1 if pools else 2, 100)))
    dtypes = ("float64",) * pools + ("float32", "bfloat16", "float16")
    workload = Workload(
        batch=draw(st.integers(1, 3)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        query_length=query_length,
        key_length=draw(st.one_of(st.just(query_length), st.integers(1, 90)).map(lambda n: max(n, 1 if pools else 2))),
        head_dim=draw(st.sampled_from((1, 8))),
        value_head_dim=draw(st.sampled_from((None, 5))),
        scale=draw(st.sampled_from((None, 0.3))),
        dtype=draw(st.sampled_from(dtypes)),
        mask=draw(st.sampled_from(("full", "padding:0.1", "padding:0.5"))),
        mode=draw(st.sampled_from(("fwd", "fwd_bwd"))),
        seed=draw(st.integers(0, 3)),
    )
    return workload, parameters


@given(cases())
def test_it_computes_its_formula(case):
    parametrised.check(VARIANT, *case)


@pytest.mark.parametrize("parameters", KINDS[1:], ids=str)
def test_random_matrices_in_double_precision(parameters):
    workload = replace(PADDED, dtype="float64")
    given = operands(workload)
    right = linformer.reference(*given.inputs, workload=workload, parameters=parameters, rows=torch.arange(100))
    torch.testing.assert_close(run(VARIANT, workload, parameters, given).output, right, rtol=1e-10, atol=1e-12)


# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [100, 1000])
@pytest.mark.parametrize("workload", [BASE, PADDED, replace(BASE, query_length=7)])
def test_pooling_with_a_rank_of_the_length_is_exact_attention(rank, workload):
    given = operands(workload)
    output = run(VARIANT, workload, Parameters(rank=rank), given).output
    torch.testing.assert_close(output.double(), parametrised.exactly(workload, given), rtol=1e-5, atol=1e-6)


def test_the_formula_with_identities_is_exact_attention():
    given = operands(replace(PADDED, dtype="float64"))
    rows = torch.tensor([0, 31, 99])
    identity = lambda kept: Matrices(*[torch.eye(kept)] * 2)  # noqa: E731  # shorter so
    output = _linformer.attended_rows(*given.inputs, workload=PADDED, rows=rows, matrices_of=identity)
    torch.testing.assert_close(output, parametrised.exactly(PADDED, given)[:, :, rows])


def test_a_rank_of_one_is_the_mean():
    given = operands(BASE)
    mean = given.value.mean(dim=2, keepdim=True).repeat_interleave(2, dim=1).expand(-1, -1, 100, -1)
    torch.testing.assert_close(run(VARIANT, BASE, Parameters(rank=1), given).output, mean)


def test_below_the_length_it_is_not_exact():
    assert parametrised.relative_error(VARIANT, replace(BASE, mode="fwd"), Parameters(rank=50)) > 0.1


@pytest.mark.parametrize("projection", ["pooling", "random"])
def test_a_higher_rank_is_nearer_to_exact(projection):
    workloads = [replace(square(BASE, 256), mode="fwd", seed=seed) for seed in range(4)]
    errors = [
        sum(parametrised.relative_error(VARIANT, workload, Parameters(rank, projection)) for workload in workloads)
        for rank in (8, 64, 200)
    ]
    assert errors[1] < 0.95 * errors[0]
    assert errors[2] < 0.95 * errors[1]


# --- the matrices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "rank"), [(1, 1), (10, 3), (12, 3), (129, 128), (5, 9)])
def test_pooling_is_a_mean_over_even_runs(length, rank):
    matrix = _linformer.pooling(length, rank)
    assert matrix.shape == (min(rank, length), length)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(len(matrix), dtype=torch.float64))
    sizes = (matrix > 0).sum(dim=1)
    assert sizes.max() - sizes.min() <= 1
    assert ((matrix > 0).sum(dim=0) == 1).all()
    tensor = torch.randn(2, 3, length, 4, dtype=torch.float64)
    torch.testing.assert_close(linformer.pooled(tensor, rank), matrix @ tensor)


def test_matrices_are_drawn_from_the_seed():
    parameters = Parameters(rank=50, projection="random", sharing="headwise")
    workload = square(BASE, 2000)
    torch.manual_seed(0)
    first, again, other = (_linformer.matrices(replace(workload, seed=seed), parameters) for seed in (0, 0, 1))
    assert torch.equal(first.key, again.key)
    assert torch.equal(first.value, again.value)
    assert not torch.equal(first.key, other.key)
    assert not torch.equal(first.key, first.value)
    assert float(first.key.std()) == pytest.approx(50**-0.5, rel=0.02)


def test_what_is_shared():
    headwise, shared, apart = (
        _linformer.matrices(BASE, Parameters(rank=5, projection="random", sharing=sharing))
        for sharing in ("headwise", "kv", "none")
    )
    assert headwise.key.shape == (5, 100)
    assert len(headwise.distinct) == 2
    assert shared.key is shared.value
    assert apart.key.shape == (2, 5, 100)
    assert not torch.equal(apart.key[0], apart.key[1])


def test_matrices_are_numbers_of_the_working_dtype():
    half = replace(BASE, dtype="bfloat16")
    for kind in KINDS:
        made = _linformer.matrices(half, kind)
        assert made.key.dtype == torch.bfloat16


# --- training -----------------------------------------------------------------------------------------------------


def products(parameters):
    """Matrix products that a training step issues."""
    call = Call(VARIANT.build(BASE, parameters), operands(BASE), "fwd_bwd")
    with profile(acc_events=False) as profiled:
        call.whole()
    return sum(event.count for event in profiled.key_averages() if event.key in {"aten::mm", "aten::bmm"})


def test_learning_costs_a_product_more_for_each_matrix():
    random, learned = (
        products(Parameters(rank=12, projection=projection, sharing="headwise")) for projection in ("random", "learned")
    )
    assert learned == random + 2


def test_learned_matrices_get_their_gradient():
    matrix = torch.randn(5, 100, dtype=torch.float64, requires_grad=True)
    inputs = [tensor.detach().double().requires_grad_() for tensor in operands(BASE).inputs]

    def attend(query, key, value):
        return (query[:, ::2] * (matrix @ key).sum()) @ (matrix @ value).mT

    output = _linformer.trained(attend, [matrix])(*inputs)
    upstream = torch.randn_like(output)
    expected = torch.autograd.grad(attend(*inputs), [*inputs, matrix], upstream)
    output.backward(upstream)
    for leaf, gradient in zip([*inputs, matrix], expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)


def test_a_forward_alone_learns_nothing():
    workload = replace(BASE, mode="fwd")
    given = operands(workload)
    assert not VARIANT.build(workload, KINDS[4])(*given.inputs).requires_grad
    builds_a_graph = []
    attend = _linformer.trained(lambda query, key, value: builds_a_graph.append(torch.is_grad_enabled()) or query, [])
    with torch.no_grad():
        attend(*operands(BASE).inputs)
    assert builds_a_graph == [False]


# --- padding, strides, memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [*KINDS, Parameters(rank=80)], ids=str)
def test_padding_is_never_read(parameters):
    given = operands(PADDED)
    kept = Pattern.of(PADDED).kept.tolist()
    clean, dirty = (run(VARIANT, PADDED, parameters, some) for some in (given, parametrised.poisoned(given, kept)))
    assert torch.equal(clean.output, dirty.output)
    for first, second in zip(clean.gradients, dirty.gradients, strict=True):
        assert torch.equal(first, second)
    for gradient in dirty.gradients[1:]:
        assert not any(gradient[item, :, count:].any() for item, count in enumerate(kept))


@pytest.mark.parametrize("parameters", KINDS, ids=str)
def test_any_strides(parameters):
    given = operands(PADDED)
    first, second = (run(VARIANT, PADDED, parameters, some) for some in (given, parametrised.strided(given)))
    torch.testing.assert_close(first.output, second.output)
    for ours, theirs in zip(first.gradients, second.gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("parameters", [Parameters(), Parameters(projection="learned")], ids=str)
def test_memory_is_linear_and_holds_no_scores(parameters):
    workload = Workload(heads=2, kv_heads=2, head_dim=16, mode="fwd_bwd")
    assert parametrised.memory_exponent(VARIANT, workload, parameters, (2048, 4096, 8192)) <= 1.1
    scores = 2 * 8192 * 128 * 4
    assert parametrised.peak_bytes(VARIANT, replace(square(workload, 8192), mode="fwd"), parameters) < scores / 2


def test_flops():
    one = replace(BASE, batch=1, mode="fwd")
    assert linformer.flops(one, Parameters(rank=10)) == 4 * 4 * 100 * 10 * 8
    projections = 2 * 2 * 2 * 10 * 100 * 8  # two products for each of two key heads
    assert linformer.flops(one, Parameters(rank=10, projection="random")) == 4 * 4 * 100 * 10 * 8 + projections
    learned, random = (
        linformer.flops(replace(one, mode="bwd"), Parameters(rank=10, projection=projection))
        for projection in ("learned", "random")
    )
    assert learned == random + projections
    lengths = [linformer.flops(square(BASE, length), KINDS[1]) for length in (1024, 2048)]
    assert lengths[1] == 2 * lengths[0]


# --- what it refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "word"),
    [
        ("causal", "not causal"),
        ("window:9", "not causal"),
        ("prefix:9", "not causal"),
        ("band:9", "mixes the keys"),
        ("document:2", "mixes the keys"),
        ("bigbird:16x2x1", "mixes the keys"),
        ("softcap:2", "score"),
        ("alibi", "score"),
    ],
)
def test_masks_that_it_refuses(mask, word):
    (reason,) = VARIANT.obstacles(replace(BASE, mask=mask), Parameters())
    assert mask in reason
    assert word in reason


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        (Parameters(projection="random", sharing="layerwise"), "layers"),
        (Parameters(sharing="layerwise"), "layers"),
        (Parameters(sharing="none"), "pooling"),
        (Parameters(sharing="headwise"), "pooling"),
    ],
    ids=str,
)
def test_ways_of_sharing_that_mean_nothing_here(parameters, word):
    (reason,) = VARIANT.obstacles(BASE, parameters)
    assert word in reason


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"projection": "pool"}, {"sharing": "all"}])
def test_parameters_that_it_does_not_know(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        Parameters(**wrong)
