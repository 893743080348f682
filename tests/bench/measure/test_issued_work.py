"""The FLOPs that a variant says it issues, against torch's own count of the products that it dispatched.

Where torch has no formula for a product, the textbook's stands in, written from shapes alone. What cannot be counted
so is listed with its reason; there the count is held against a formula of torch's for the same problem, or against
what little there is to count.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from tests.variants.problems import VARIANTS, compiles, operands, refusals, small

ATEN = torch.ops.aten

# Products that FlopCounterMode has no formula for: shapes in, operations out, a multiply-add being two.
MISSING = {
    ATEN.mv: lambda matrix, vector, **_: 2 * prod(matrix),
    ATEN.dot: lambda one, other, **_: 2 * prod(one),
    # forward substitution: every right-hand side meets half of the matrix
    ATEN.linalg_solve_triangular: lambda matrix, right, **_: prod(right) * matrix[-1],
    ATEN._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: lambda above, q, k, v, *_, **__: (
        sdpa_backward_flop_count(above, q, k, v)
    ),
}

FUSED = "a kernel that runs on a GPU only: five products for four in the backward, as torch counts fused attention"
NOT_COUNTED = {
    "flash_attn": FUSED,
    "flex": "compiled code dispatches nothing that torch could count",
    "flex_bigbird": "likewise, and blocks are skipped: tests/variants/test_flex.py counts them",
    "flex_local": "likewise",
    "sdpa_cudnn": FUSED,
    "sdpa_efficient": FUSED,
    "uniform": "a mean has no product: an addition for every number of the values, or of the output's gradient",
    "xformers": FUSED,
}
# By torch's formula for fused attention, though they do not run here.
BY_FORMULA = ("flash_attn", "flex", "sdpa_cudnn", "sdpa_efficient", "xformers")
# What they do beside their products, of which torch counts none.
BESIDE = {
    "hard": "its backward adds the output's gradient to the values that were chosen, and that alone",
    "performer_pytorch": "causal, outer products of keys and values are written with `*`, and summed",
}
MODES = ("fwd", "bwd", "fwd_bwd")


LENGTHS = {"transformers_bigbird": 1024}  # shorter ones it leaves to full attention


def problem(mask, name=""):
    length = LENGTHS.get(name, 300)
    return small(query_length=length, key_length=length, kv_heads=4, value_head_dim=16, mask=mask)


def counted(name, workload):
    """Operations by mode, as torch counts what is dispatched."""
    variant = VARIANTS[name]
    attend = variant.build(workload, variant.parameters())
    given = operands(workload).fresh(differentiable=True)
    alone, forward, backward = (FlopCounterMode(display=False, custom_mapping=MISSING) for _ in range(3))
    with torch.no_grad(), alone:
        attend(*given.fresh(differentiable=False).inputs)
    with forward:
        output = attend(*given.inputs)
    with backward:
        torch.autograd.grad(output, given.inputs, given.upstream, allow_unused=True)
    first, second = forward.get_total_flops(), backward.get_total_flops()
    return {"fwd": alone.get_total_flops(), "bwd": second, "fwd_bwd": first + second}


def issued(name, workload):
    variant = VARIANTS[name]
    return {mode: variant.flops(replace(workload, mode=mode), variant.parameters()) for mode in MODES}


def runs(mask):
    return [name for name in sorted(VARIANTS) if name not in NOT_COUNTED and not refusals(name, problem(mask, name))]


def beside(name, workload):
    """Operations by mode that torch does not count."""
    rows = workload.batch * workload.heads * workload.query_length
    if name == "hard":
        return {"fwd": 0, "bwd": rows * workload.value_dim, "fwd_bwd": rows * workload.value_dim}
    if name == "performer_pytorch" and workload.mask == "causal":
        features = VARIANTS[name].parameters().count(workload)
        outer = 2 * rows * features * workload.value_dim
        return {"fwd": outer, "bwd": 2 * outer, "fwd_bwd": 3 * outer}
    return dict.fromkeys(MODES, 0)


def test_every_variant_is_counted_or_says_why_not():
    assert {*runs("full"), *runs("causal"), *NOT_COUNTED} == set(VARIANTS)
    assert set(BY_FORMULA) <= set(NOT_COUNTED)
    assert all(compiles(name) for name in NOT_COUNTED if name.startswith("flex"))
    assert set(BESIDE) <= set(VARIANTS)


@pytest.mark.parametrize("name", runs("full"))
def test_it_issues_what_torch_counts(name):
    workload = problem("full", name)
    found, more = counted(name, workload), beside(name, workload)
    assert found["fwd"] > 0
    assert issued(name, workload) == {mode: found[mode] + more[mode] for mode in MODES}


@pytest.mark.parametrize("name", runs("causal"))
def test_under_a_causal_mask_it_issues_no_more_than_torch_counts(name):
    """Torch counts all pairs of a fused kernel, those too that it skips under its causal flag."""
    workload = problem("causal", name)
    found, more = counted(name, workload), beside(name, workload)
    expected = {mode: found[mode] + more[mode] for mode in MODES}
    if name.startswith("sdpa") and name != "sdpa_math":
        pairs = 300 * 301 / 2 / 300**2
        for mode, count in issued(name, workload).items():
            assert pairs * expected[mode] < count < expected[mode]
    else:
        assert issued(name, workload) == expected


@pytest.mark.parametrize("name", BY_FORMULA)
def test_what_does_not_run_here_counts_as_torch_counts_fused_attention(name):
    workload = problem("full")
    query = (workload.batch, workload.heads, workload.query_length, workload.head_dim)
    forward, backward = sdpa_flop_count(query, query, query), sdpa_backward_flop_count(query, query, query, query)
    assert issued(name, workload) == {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}


def test_a_mean_counts_its_additions():
    workload = problem("full")
    numbers = workload.batch * workload.heads * workload.query_length * workload.value_dim
    assert counted("uniform", workload) == dict.fromkeys(MODES, 0)
    assert issued("uniform", workload) == {"fwd": numbers, "bwd": numbers, "fwd_bwd": 2 * numbers}
