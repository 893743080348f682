"""The suites of real models: their shapes are the published ones, and reduced lengths run on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

import variants
from bench.measure.case import measure
from bench.sweep import plan, suite
from tests.bench.attentions import SETTINGS
from variants._mask import Mask

VARIANTS = variants.find()
LLAMA3_8B, LLAMA3_70B = (
    (32, 8, 128),
    (64, 8, 128),
)  # arXiv 2407.21783, table 3: heads, key-value heads, channels / heads

# heads, key-value heads and head dimension; lengths of query and key; words of the masks
PUBLISHED = {
    # arXiv 2010.11929, table 1: 768, 1024 and 1280 channels; (224/16)² + 1, (384/16)² + 1, (224/14)² + 1 positions
    "vit": ({(12, 12, 64), (16, 16, 64), (16, 16, 80)}, {(197, 197), (577, 577), (257, 257)}, {"full"}),
    # arXiv 1810.04805, section 3 and A.2: 768 and 1024 channels, 128 and 512 positions
    "bert": ({(12, 12, 64), (16, 16, 64)}, {(128, 128), (512, 512)}, {"full", "padding:0.7"}),
    # Language Models are Unsupervised Multitask Learners, table 2: 768, 1024, 1280 and 1600 channels, 1024 positions
    "gpt2": ({(heads, heads, 64) for heads in (12, 16, 20, 25)}, {(256, 256), (1024, 1024)}, {"causal"}),
    "llama3-8b": (
        {LLAMA3_8B},
        {(length, length) for length in (2048, 8192, 32768, 131072)},
        {"causal", "causal+document:8"},
    ),
    "llama3-70b": (
        {LLAMA3_70B},
        {(length, length) for length in (2048, 8192, 32768, 131072)},
        {"causal", "causal+document:8"},
    ),
    "decode": (
        {LLAMA3_8B, LLAMA3_70B},
        {(1, length * 1024) for length in (1, 4, 16, 64, 128)},
        {"causal"},
    ),
    # arXiv 2308.16369: chunks of 256 and 512
    "chunked_prefill": (
        {LLAMA3_8B},
        {(query, key * 1024) for query in (256, 512, 2048) for key in (4, 16, 64, 128)},
        {"causal"},
    ),
    "varlen": (
        {LLAMA3_8B, (12, 12, 64)},
        {(length, length) for length in (512, 2048, 8192)},
        {"causal+document:4", "causal+document:16", "causal+document:64", "document:4", "document:16"},
    ),
}
CHANNELS = {"vit": {768, 1024, 1280}, "bert": {768, 1024}, "gpt2": {768, 1024, 1280, 1600}, "llama3-8b": {4096}}
HALF = {"vit", "llama3-8b", "llama3-70b", "decode", "chunked_prefill"}
REDUCED = {
    "decode": {"seq_len_kv": ["96"]},
    "chunked_prefill": {"seq_len": ["16"], "seq_len_kv": ["64"]},
}
presets = pytest.mark.parametrize("name", sorted(PUBLISHED))


@lru_cache
def planned(name, reduced):
    chosen = suite.load(name)
    if reduced:
        chosen = suite.override(chosen, axes={"batch": 1, **REDUCED.get(name, {"seq_len": ["64"]})}, settings={})
    return plan.cases(chosen, sorted(VARIANTS), "cpu", lambda variant, given: given)


@presets
def test_shapes_are_those_of_the_models(name):
    shapes, lengths, masks = PUBLISHED[name]
    workloads = {case.workload for case in planned(name, reduced=False)}
    assert {(one.heads, one.kv_heads, one.head_dim) for one in workloads} == shapes
    assert {(one.query_length, one.key_length) for one in workloads} == lengths
    assert {one.mask for one in workloads} == {str(Mask.parse(mask)) for mask in masks}
    if name in CHANNELS:
        assert {one.heads * one.head_dim for one in workloads} == CHANNELS[name]
    if name != "varlen":
        assert {one.dtype for one in workloads} == {"bfloat16" if name in HALF else "float32"}


@presets
def test_a_preset_says_what_it_is(name):
    loaded = suite.load(name)
    assert loaded.description.endswith(".")
    assert loaded.baseline == "naive_sdpa"
    assert {"naive_sdpa", "sdpa_flash"} <= {case.variant for case in planned(name, reduced=False)}


@presets
def test_each_variant_of_a_preset_has_a_case_there_on_some_device(name):
    """An attention that can take none of a preset's problems does not belong there."""
    for variant in {case.variant for case in planned(name, reduced=False)}:
        at_home = [_somewhere(case) for case in planned(name, reduced=False) if case.variant == variant]
        assert any(at_home), variant


def _somewhere(case):
    """Whether it is runnable but for what a machine lacks: a device, a package."""
    variant = VARIANTS[case.variant]
    reasons = variant.obstacles(replace(case.workload, device="cuda"), variant.parameters(**case.parameters))
    return not [reason for reason in reasons if not any(word in reason for word in ("installed", "CUDA", "GPU"))]


@presets
def test_lengths_from_outside_replace_those_of_the_preset(name):
    given = {**REDUCED.get(name, {"seq_len": ["64"]})}
    query = {int(length) for length in given.get("seq_len", [])}
    key = {int(length) for length in given.get("seq_len_kv", given.get("seq_len", []))}
    for case in planned(name, reduced=True):
        assert case.workload.key_length in key
        assert case.workload.query_length in (query or {1})
        assert (case.workload.heads, case.workload.kv_heads, case.workload.head_dim) in PUBLISHED[name][0]


@presets
def test_reduced_it_is_measured_here(name):
    for variant in ("naive_sdpa", "sdpa_flash"):
        case = next(case for case in planned(name, reduced=True) if case.variant == variant)
        full = type(case)(variant=variant, parameters={}, workload=case.workload)
        outcome = measure(full, VARIANTS[variant], settings=SETTINGS, ceilings={}, on_stage=lambda _: None)
        assert outcome.seconds, f"{variant}: {outcome}"
