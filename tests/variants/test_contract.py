"""What every variant must hold to, whatever it computes. Workloads that a variant refuses are not run, only listed."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.measure import dispatch
from bench.measure.call import Call
from bench.measure.memory import weigh_cpu
from tests.variants.problems import (
    VARIANTS,
    built,
    changed,
    check_against_own_formula,
    compiles,
    empty_rows,
    forward_only,
    operands,
    refusals,
    run,
    small,
    spelled,
    square,
)
from variants._contract import Family, Workload
from variants._mask import Mask
from variants._pattern import Pattern

MASKS = (
    "full",
    "causal",
    "window:7",
    "band:5",
    "prefix:9",
    "document:3",
    "padding:0.6",
    "bigbird:16x2x1",
    "alibi",
    "softcap:2",
    "softcap:2+alibi+causal",
    "causal+padding:0.6",
    "document:3+causal",
    "band:9+document:4+padding:0.5",
    "bigbird:10x1x2+causal+padding:0.7",
)
SHAPES = (
    square(1),
    square(2),
    square(64),
    square(200),
    small(query_length=40, key_length=72),
    small(query_length=1, key_length=72),
    small(query_length=72, key_length=40),
    small(heads=3, kv_heads=3),
    small(heads=6, kv_heads=1, batch=1),
    small(head_dim=80),
    small(value_head_dim=24),
    small(scale=0.3),
)
CHEAP = [
    *(small(mask=mask) for mask in MASKS),
    *(replace(shape, mask=mask) for shape in SHAPES for mask in ("full", "causal")),
    small(query_length=72, key_length=40, mask="document:3+window:9"),
    small(query_length=40, key_length=72, mask="bigbird:16x2x1+padding:0.5"),
    *(small(dtype=dtype, mask=mask) for dtype in ("float64", "bfloat16", "float16") for mask in ("full", "causal")),
    small(mode="bwd", mask="causal"),
    small(mode="fwd", mask="causal"),
    small(mode="fwd", mask="full"),
]
COMPILED = {  # a build takes seconds
    "flex": (
        square(200, mask="causal+padding:0.6"),
        small(query_length=172, key_length=140, head_dim=80, value_head_dim=24, mask="softcap:2+alibi+causal"),
        small(query_length=140, key_length=172, mask="bigbird:16x2x1+document:2", scale=0.3),
        small(query_length=1, key_length=1100, mask="causal+padding:0.6"),  # a kernel of its own
        square(150, mask="causal", dtype="float16", heads=2),
    ),
    "flex_bigbird": (square(150, mask="padding:0.6"), square(1)),
    "flex_local": (square(300, mask="causal+padding:0.6"),),
}
ACCEPTED = {
    **dict.fromkeys(("naive_sdpa", "chunked_mha", "sdpa_math", "sdpa_flash", "sdpa_auto"), (MASKS[:-1], "fwd_bwd")),
    "uniform": (tuple(mask for mask in MASKS if not Mask.parse(mask).changes_scores), "fwd_bwd"),
    "flex": (MASKS, "fwd"),
    "flex_bigbird": (("full", "padding:0.6"), "fwd"),
    **dict.fromkeys(("bigbird", "linformer", "linformer_pytorch"), (("full",), "fwd_bwd")),
    **dict.fromkeys(("reformer_lsh", "reformer_pytorch"), (("full", "causal"), "fwd_bwd")),
    **dict.fromkeys(("linear_attention", "performer"), (("full", "causal", "causal+padding:0.6"), "fwd_bwd")),
    "fast_weight": (("causal", "causal+padding:0.6"), "fwd_bwd"),
    **dict.fromkeys(("nystrom", "nystrom_attention"), (("full", "padding:0.6"), "fwd_bwd")),
    "performer_pytorch": (("full", "causal"), "fwd_bwd"),
    "local": (("full", "causal", "window:7", "prefix:9", "band:9+document:4+padding:0.5"), "fwd_bwd"),
    "flex_local": (MASKS, "fwd"),
}


MIXES_ITEMS = {"nystrom_attention"}  # shown where the package is tested
# With one key their gradients are zero but for rounding, which random directions of any length enlarge.
RANDOM_FEATURES = {"performer", "performer_pytorch"}


def is_installed(package):
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def runnable(name, workloads):
    return [workload for workload in workloads if not refusals(name, workload)]


def everything(name):
    if compiles(name):
        return runnable(name, map(forward_only, COMPILED.get(name, (square(150), square(150, mask="causal")))))
    return runnable(name, CHEAP)


def trials(*workloads, needs=lambda workload: True):
    """Each variant with the workloads that it takes: among these, among all, or if it compiles its few."""
    return pytest.mark.parametrize(
        ("name", "workload"),
        [
            pytest.param(name, workload, id=f"{name}-{spelled(workload)}")
            for name in sorted(VARIANTS)
            for workload in (runnable(name, workloads) if workloads and not compiles(name) else everything(name))
            if needs(workload)
        ],
    )


def has_a_future(workload):
    return Mask.parse(workload.mask).is_causal and workload.query_length > 1


def is_plain(workload):
    return workload.mask in ("full", "causal")


def is_padded(workload):
    return Mask.parse(workload.mask).padding is not None


def has_two_items(workload):
    return workload.batch > 1 and workload.kv_heads > 1


# --- what a variant says about itself -------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_it_describes_itself(name):
    variant = VARIANTS[name]
    assert variant.name == name
    assert variant.family in get_args(Family)
    assert variant.exact == (variant.family == "exact")
    assert variant.summary.endswith(".")
    assert "\n" not in variant.summary
    assert variant.complexity.time >= variant.complexity.memory > 0
    assert variant.uses
    assert variant.parameters() == variant.parameters()
    assert variant.equation
    assert variant.equation.count("{") == variant.equation.count("}")
    assert (variant.exact_when == "always") == variant.exact
    assert variant.traps
    assert all(trap.endswith(".") for trap in variant.traps)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_it_says_why_it_refuses(name):
    for workload in (*CHEAP, Workload(device="cpu")):
        for reason in refusals(name, workload):
            assert isinstance(reason, str)
            assert len(reason.split()) > 2, reason
            assert "\n" not in reason


@pytest.mark.parametrize("name", sorted(set(ACCEPTED) & set(VARIANTS)))
def test_it_takes_what_it_is_there_for(name):
    masks, mode = ACCEPTED[name]
    if (package := VARIANTS[name].package) and not is_installed(package):
        pytest.skip(f"{package} is not installed")
    for mask in masks:
        if name.startswith("sdpa") and Mask.parse(mask).softcap is not None:
            continue
        workload = small(mask=mask, mode=mode)
        assert refusals(name, workload) == []
        assert refusals(name, replace(workload, kv_heads=workload.heads)) == []


def test_every_variant_runs_here_or_is_known_to_need_a_gpu():
    idle = {
        name
        for name, variant in VARIANTS.items()
        if not everything(name) and (variant.package is None or is_installed(variant.package))
    }
    needs_length = {"transformers_bigbird"}  # full attention up to 704 positions; run in a file of its own
    assert idle - needs_length <= {"sdpa_efficient", "sdpa_cudnn", "xformers", "flash_attn"}


@trials()
def test_flops_are_a_positive_whole_number(name, workload):
    variant = VARIANTS[name]
    issued = {
        mode: variant.flops(replace(workload, mode=mode), variant.parameters()) for mode in ("fwd", "bwd", "fwd_bwd")
    }
    assert all(isinstance(count, int) and count > 0 for count in issued.values()), issued
    assert issued["fwd_bwd"] == issued["fwd"] + issued["bwd"]


# --- what it computes -----------------------------------------------------------------------------------------


@trials()
def test_it_computes_its_own_formula(name, workload):
    result = check_against_own_formula(name, workload)
    assert result.output.shape == (workload.batch, workload.heads, workload.query_length, workload.value_dim)
    assert result.output.dtype == getattr(torch, workload.dtype)
    assert all(tensor.isfinite().all() for tensor in (result.output, *(result.gradients or ())) if tensor is not None)
    hidden = empty_rows(workload).expand(workload.batch, workload.heads, -1)
    assert not result.output[hidden].any(), "rows with nothing to attend must be zero"
    for use, gradient in zip(("query", "key", "value"), result.gradients or (), strict=False):
        if use not in VARIANTS[name].uses:
            assert gradient is None or not gradient.any()
    if result.gradients is not None and result.gradients[0] is not None:
        assert not result.gradients[0][hidden].any() or VARIANTS[name].uses != {"query", "key", "value"}


@st.composite
def problems(draw):
    group, kv_heads = draw(st.sampled_from((1, 2, 3))), draw(st.integers(1, 2))
    query_length = draw(st.integers(1, 90))
    return Workload(
        batch=draw(st.integers(1, 3)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        query_length=query_length,
        key_length=draw(st.one_of(st.just(query_length), st.integers(1, 90))),
        head_dim=draw(st.sampled_from((1, 5, 8, 20))),
        dtype=draw(st.sampled_from(("float64", "float32", "bfloat16", "float16"))),
        mask=draw(masks()),
        mode=draw(st.sampled_from(("fwd", "fwd_bwd"))),
        seed=draw(st.integers(0, 3)),
    )


@st.composite
def masks(draw):
    length = st.integers(1, 100)
    terms = {
        "causal": st.just("causal"),
        "window": length.map("window:{}".format),
        "band": length.map("band:{}".format),
        "prefix": length.map("prefix:{}".format),
        "document": st.integers(1, 6).map("document:{}".format),
        "padding": st.sampled_from(("padding:0.1", "padding:0.5", "padding:0.9")),
        "bigbird": st.tuples(*(st.integers(*ends) for ends in ((3, 20), (0, 3), (0, 3)))).map(
            lambda sizes: "bigbird:{}x{}x{}".format(*sizes)
        ),
        "alibi": st.just("alibi"),
        "softcap": st.sampled_from(("softcap:0.7", "softcap:20")),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(terms)), max_size=3, unique=True))
    return str(Mask.parse("+".join(draw(terms[name]) for name in chosen) or "full"))


@pytest.mark.parametrize("name", [name for name in sorted(VARIANTS) if not compiles(name)])
@given(workload=problems(), simpler=st.sampled_from(("full", "causal", None)))
def test_any_problem_that_it_takes(name, workload, simpler):
    if refusals(name, workload) and simpler:
        workload = replace(workload, mask=simpler)
    if refusals(name, workload):
        workload = replace(workload, key_length=workload.query_length, mask="full")
    if name in RANDOM_FEATURES and workload.key_length == 1:
        workload = replace(workload, query_length=2, key_length=2)
    if name == "performer_pytorch" and "float16" in workload.dtype:
        workload = replace(workload, dtype="float32")  # the package rounds its features on the way
    if refusals(name, workload):
        return
    check_against_own_formula(name, workload)


@trials(small(mask="full"), small(mask="causal"), small(mask="padding:0.6"))
def test_the_same_seed_gives_the_same_bytes(name, workload):
    variant = VARIANTS[name]
    once = run(name, workload)
    if not compiles(name):
        built.cache_clear()
        variant.build(replace(workload, seed=5), variant.parameters())  # must leave no trace
    torch.manual_seed(1234)  # nor must the global generator matter
    again = run(name, workload)
    assert torch.equal(once.output, again.output)
    for first, second in zip(once.gradients or (), again.gradients or (), strict=True):
        assert (first is None) == (second is None)
        assert first is None or torch.equal(first, second)


@trials(small(mask="full"), small(mask="causal"), small(mask="padding:0.6"), small(mask="softcap:2+alibi+causal"))
def test_tensors_of_the_caller_stay_as_they_are(name, workload):
    before = operands(workload)
    after = before.fresh(differentiable=workload.mode != "fwd")
    with torch.set_grad_enabled(workload.mode != "fwd"):
        output = built(name, workload)(*after.inputs)
        if workload.mode != "fwd":
            torch.autograd.grad(output, after.inputs, after.upstream, allow_unused=True)
    assert torch.equal(after.upstream, before.upstream)
    for tensor, original in zip(after.inputs, before.inputs, strict=True):
        assert torch.equal(tensor, original)
        assert output.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


# --- what must not matter -------------------------------------------------------------------------------------


def assert_same(first, second):
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@trials(
    *[
        small(mask="causal"),
        small(mask="window:9"),
        small(mask="softcap:2+alibi+causal"),
        small(mask="document:3+causal"),
        small(mask="bigbird:16x2x1+causal"),
        square(200, mask="causal"),
        small(query_length=40, key_length=72, mask="causal"),
    ],
    needs=has_a_future,
)
def test_the_future_does_not_leak(name, workload):
    variant = VARIANTS[name]
    offset = workload.key_length - workload.query_length
    given = operands(workload)
    before = run(name, workload, given)
    row = workload.query_length // 2
    cut = max(row + offset, 0)
    future, later = (..., slice(cut, None), slice(None)), (..., slice(row, None), slice(None))
    where = {"value": future}
    if variant.causal_leak == "none":
        where |= {"key": future, "query": later}
    after = run(name, workload, changed(given, **where))
    assert_same(before.output[:, :, :row], after.output[:, :, :row])
    assert not torch.equal(before.output[:, :, row:], after.output[:, :, row:])
    if before.gradients is not None:
        # an upstream gradient on early rows only reaches nothing later
        early = replace(given, upstream=given.upstream.clone())
        early.upstream[:, :, row:] = 0
        gradients = run(name, workload, early).gradients
        for gradient, at in zip(gradients, (row, cut, cut), strict=True):
            assert gradient is None or not gradient[:, :, at:].any()


@trials(
    *[
        small(mask="padding:0.6"),
        small(mask="causal+padding:0.6"),
        small(mask="bigbird:16x2x1+padding:0.5"),
        small(mask="softcap:2+padding:0.6"),
        small(query_length=40, key_length=72, mask="padding:0.5"),
    ],
    needs=is_padded,
)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_padding_does_not_leak(name, workload, size):
    uses = VARIANTS[name].uses
    given = operands(workload)
    before = run(name, workload, given)
    poisoned = given.fresh(differentiable=False)
    kept = Pattern.of(workload, "cpu").kept.tolist()
    shared = "key" not in uses  # then a query is a key, and padding at one position is both
    for item, count in enumerate(kept):
        for tensor in (poisoned.key, poisoned.value, *((poisoned.query,) if shared else ())):
            tensor[item, :, count:] = size * torch.randn(tensor[item, :, count:].shape)
    after = run(name, workload, poisoned)
    for item, count in enumerate(kept):
        real = slice(None, count) if shared else slice(None)
        assert_same(before.output[item, :, real], after.output[item, :, real])
        for use, first, second in zip(
            ("query", "key", "value"), before.gradients or (), after.gradients or (), strict=False
        ):
            if first is None:
                continue
            if use != "query":
                assert not second[item, :, count:].any(), "padding has a gradient"
            if not shared:
                end = None if use == "query" else count
                assert_same(first[item, :, :end], second[item, :, :end])


@trials(
    *[small(mask="full"), small(mask="causal"), small(mask="padding:0.6"), small(mask="full", dtype="bfloat16")],
    needs=has_two_items,
)
def test_batch_items_and_heads_are_independent(name, workload):
    if name in MIXES_ITEMS:
        pytest.skip("its package takes a maximum over batch and heads")
    given = operands(workload)
    before = run(name, workload, given)
    item = dict.fromkeys(("query", "key", "value", "upstream"), (1,))
    after = run(name, workload, changed(given, **item))
    assert_same(before.output[0], after.output[0])
    assert not torch.equal(before.output[1], after.output[1])
    for first, second in zip(before.gradients or (), after.gradients or (), strict=True):
        assert first is None or torch.allclose(first[0], second[0], rtol=1e-4, atol=1e-5)
    group = workload.group
    head = {
        "query": (slice(None), slice(group, None)),
        "upstream": (slice(None), slice(group, None)),
        "key": (slice(None), slice(1, None)),
        "value": (slice(None), slice(1, None)),
    }
    after = run(name, workload, changed(given, **head))
    assert_same(before.output[:, :group], after.output[:, :group])
    assert not torch.equal(before.output[:, group:], after.output[:, group:])
    for heads, first, second in zip((group, 1, 1), before.gradients or (), after.gradients or (), strict=False):
        assert first is None or torch.allclose(first[:, :heads], second[:, :heads], rtol=1e-4, atol=1e-5)


@trials(small(mask="full"), small(mask="causal"), needs=is_plain)
def test_it_runs_the_kernels_that_it_claims(name, workload):
    for mode in ("fwd", "fwd_bwd"):
        asked = replace(workload, mode=mode)
        if refusals(name, asked):
            continue
        call = Call(built(name, asked), operands(asked).fresh(differentiable=mode != "fwd"), mode)
        assert dispatch.fell_back(VARIANTS[name], "cpu", weigh_cpu(call).dispatched) is None
