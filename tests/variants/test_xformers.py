"""xformers without its operators: layouts, masks and obstacles, with a dense stand-in for the kernel."""

from __future__ import annotations

import pytest
import torch

from tests.variants.problems import check_against_own_formula, operands, refusals, small
from variants import xformers as module
from variants._contract import Workload
from variants._pattern import Pattern

fmha = pytest.importorskip("xformers.ops.fmha")


def dense(query, key, value, *, attn_bias, scale, op):
    """The package's documented function on ``(B, M, H, K)`` or ``(B, M, G, H, K)``."""
    del op
    query, key, value = (tensor.movedim(1, -2) for tensor in (query, key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if isinstance(attn_bias, fmha.attn_bias.AttentionBias):
        attn_bias = attn_bias.materialize(scores.shape[-2:], dtype=scores.dtype)
    if attn_bias is not None:
        assert attn_bias.dtype == scores.dtype
        assert attn_bias.ndim in (2, scores.ndim)
        scores = scores + attn_bias
    return (scores.softmax(dim=-1) @ value).movedim(-2, 1)


@pytest.mark.parametrize("mask", ["full", "causal", "window:9", "alibi+causal", "padding:0.6"])
@pytest.mark.parametrize("lengths", [(100, 100), (40, 75)])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("changes", [{}, {"value_head_dim": 24, "scale": 0.3}])
def test_layouts_and_masks(monkeypatch, mask, lengths, heads, changes):
    monkeypatch.setattr(fmha, "memory_efficient_attention", dense)
    workload = small(
        mask=mask,
        query_length=lengths[0],
        key_length=lengths[1],
        mode="fwd",
        heads=heads[0],
        kv_heads=heads[1],
        **changes,
    )
    assert check_against_own_formula("xformers", workload).output.shape[1] == heads[0]


def test_causal_is_aligned_with_the_last_key():
    mask = module._own_mask(Pattern.of(small(mask="causal", query_length=40, key_length=72)))
    assert isinstance(mask, fmha.attn_bias.LowerTriangularFromBottomRightMask)
    assert module._own_mask(Pattern.of(small(mask="causal", query_length=1, key_length=72))) is None
    assert module._own_mask(Pattern.of(small(mask="alibi+causal"))) is ...


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_a_bias_is_aligned_as_the_kernels_ask(heads):
    """Asked of the package's own check, of the bias itself and of the weightless one that obstacles are found with."""
    workload = small(mask="window:9", key_length=75, heads=heads[0], kv_heads=heads[1], mode="fwd")
    asked = module._inputs_to_ask_with(Pattern.of(workload))
    bias = module._bias(workload)
    assert asked.attn_bias.shape == bias.shape
    assert asked.attn_bias.untyped_storage().nbytes() < 100
    for one in (bias, asked.attn_bias):
        reasons = []
        fmha.cutlass._check_bias_alignment(reasons, one)
        assert reasons == []
    shapes = [tuple(tensor.shape) for tensor in (asked.query, asked.key, asked.value)]
    packed = [tuple(module._packed(tensor, workload).shape) for tensor in operands(workload).inputs]
    assert shapes == packed
    (reason,) = fmha.cutlass.FwOp.not_supported_reasons(asked)
    assert "cuda" in reason


def test_obstacles(monkeypatch):
    assert refusals("xformers", small()) == [
        "the package's operators need CUDA",
        "the package's grouped heads have no backward",
    ]
    assert refusals("xformers", small(kv_heads=4)) == ["the package's operators need CUDA"]
    assert refusals("xformers", small(device="cuda", mode="fwd")) == ["there is no CUDA device here"]
    assert "softcap:30: the package has no soft cap" in refusals("xformers", small(mask="softcap:30"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "is not installed" in refusals("xformers", small())[0]


def test_the_operator_is_pinned():
    for name, operator in (("cutlass", fmha.cutlass), ("flash", fmha.flash)):
        assert module._operator(module.Parameters(name)) == (operator.FwOp, operator.BwOp)


def test_issued_work():
    full = 4 * 8 * 1024**2 * 64
    flops = module.VARIANT.flops
    assert flops(Workload(), module.Parameters()) == full
    assert flops(Workload(mask="window:9"), module.Parameters()) == full
    assert flops(Workload(mask="causal"), module.Parameters()) == full * (16 * 17 / 2) / 256
    assert flops(Workload(mode="bwd"), module.Parameters()) == 2.5 * full


def test_a_bias_hides_what_the_mask_hides():
    workload = small(mask="alibi+window:9", kv_heads=4)
    bias, (allowed, added) = module._bias(workload), Pattern.of(workload).dense()
    assert torch.equal(bias.isfinite(), allowed.expand_as(bias))
    assert torch.equal(bias[bias.isfinite()], added.expand_as(bias)[bias.isfinite()])
