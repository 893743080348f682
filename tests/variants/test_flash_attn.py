"""What the package is asked for, with a stand-in that does on a CPU what the package documents."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.variants import parametrised
from tests.variants.parametrised import operands
from variants import flash_attn
from variants._contract import Workload
from variants.flash_attn import Parameters

VARIANT = flash_attn.VARIANT
BASE = Workload(batch=2, heads=4, kv_heads=2, query_length=30, key_length=40, head_dim=8, dtype="bfloat16", mode="fwd")


def stand_in(query, key, value, *, softmax_scale, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None):
    """Query i attends to keys from i + Nk − Nq − left to i + Nk − Nq + right; tensors are (B, N, H, D)."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for tensor in (key, value))
    scores = softmax_scale * query @ key.mT
    if softcap > 0:
        scores = softcap * (scores / softcap).tanh()
    ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None] - (key.shape[2] - query.shape[2])
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[:, None, None] * ahead.abs()
    left, right = window_size
    right = 0 if causal else right
    hidden = ((ahead < -left) & (left >= 0)) | ((ahead > right) & (right >= 0))
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1).nan_to_num()
    return (weights @ value).transpose(1, 2)


@pytest.mark.parametrize("lengths", [(30, 40), (40, 30), (1, 40), (30, 30)])
@pytest.mark.parametrize(
    "mask",
    [
        "full",
        "causal",
        "window:7",
        "window:1",
        "band:5",
        "band:0",
        "window:9+band:3",
        "softcap:2+causal",
        "alibi",
        "alibi+band:9",
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_it_asks_for_the_mask(mask, lengths, version, monkeypatch):
    def answer(*tensors, **options):
        output = stand_in(*tensors, **options)
        return output if version == 2 else (output, None)

    name = {2: "flash_attn", 3: "flash_attn_interface"}[version]
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(flash_attn_func=answer))
    workload = replace(BASE, mask=mask, query_length=lengths[0], key_length=lengths[1], dtype="float64", scale=0.4)
    given = operands(workload)
    output = VARIANT.build(workload, Parameters(version))(*given.inputs)
    torch.testing.assert_close(output, parametrised.exactly(workload, given))


@pytest.mark.parametrize(
    ("changes", "version", "word"),
    [
        ({}, 2, "need CUDA"),
        ({"mask": "padding:0.5"}, 2, "padding:0.5: the package knows causal"),
        ({"mask": "prefix:4"}, 2, "prefix:4: the package knows causal"),
        ({"dtype": "float32"}, 2, "not in float32"),
        ({"value_head_dim": 5}, 2, "as wide as keys"),
        ({"head_dim": 300}, 2, "up to 256"),
        ({"mask": "alibi"}, 3, "no slopes"),
    ],
)
def test_what_it_refuses(changes, version, word):
    reasons = VARIANT.obstacles(replace(BASE, **changes), Parameters(version))
    assert any(word in reason for reason in reasons), reasons


@pytest.mark.parametrize(("version", "word"), [(2, "pip install flash-attn"), (3, "sources")])
def test_without_the_package_it_says_how_to_get_it(version, word, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert any(word in reason for reason in VARIANT.obstacles(BASE, Parameters(version)))


def test_devices_that_are_too_old(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    assert VARIANT.obstacles(replace(BASE, device="cuda"), Parameters(2)) == []
    (reason,) = VARIANT.obstacles(replace(BASE, device="cuda"), Parameters(3))
    assert "needs compute capability 9.0, this device has 8.0" in reason


def test_flops():
    workload = replace(BASE, query_length=128, key_length=128, batch=1)
    assert flash_attn.flops(workload, Parameters()) == 4 * 4 * 128 * 128 * 8
    assert flash_attn.flops(replace(workload, mode="bwd"), Parameters()) == 10 * 4 * 128 * 128 * 8


def test_another_version():
    with pytest.raises(ValueError, match="version must be 2 or 3"):
        Parameters(1)
