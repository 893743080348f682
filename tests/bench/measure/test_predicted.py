"""Of every variant: the peak of a call above 64 MiB, predicted from small probes, and weighed.

Here calls are heavy through their batch, so that they take no time. Through their length they take minutes:
``python -m pytest -m perf tests/perf/test_predicted_lengths.py``.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from math import ceil

import pytest

from bench.measure.call import Call, Operands
from bench.measure.memory import weigh_cpu
from bench.measure.oracle import Problem
from bench.measure.prediction import predicted_peak_bytes
from tests.variants.problems import VARIANTS, compiles, refusals
from variants._contract import Workload

MIB = 2**20
ENOUGH = 64 * MIB
MODES = ("fwd", "fwd_bwd")
SHORT = {"query_length": 128, "key_length": 128}
COMPILED = [name for name in VARIANTS if compiles(name)]

# Heavy by their length, and quick all the same: length, batch.
LONG = {
    ("channel", "fwd_bwd"): (16384, 4),
    ("linear_attention", "fwd_bwd"): (8192, 8),
    ("linformer_pytorch", "fwd"): (16384, 4),
    ("naive_sdpa", "fwd"): (4096, 1),
    ("nystrom_attention", "fwd_bwd"): (8192, 6),
    ("performer", "fwd_bwd"): (8192, 6),
    ("performer_pytorch", "fwd"): (16384, 4),
    ("reformer_pytorch", "fwd"): (4096, 1),
    ("transformers_bigbird", "fwd"): (4096, 1),
    ("transformers_bigbird", "fwd_bwd"): (4096, 1),
}


# All pairs go through a tanh of each unit: wide values make it heavy before it takes hours.
WIDE = {"bahdanau": {"value_head_dim": 1024}}


def shape(name, **changes):
    """A workload that the variant takes, under a causal mask where it takes no other; None if none."""
    plain = Workload(**({"heads": 4, "kv_heads": 4, "head_dim": 64} | changes))
    return next((one for mask in ("full", "causal") if not refusals(name, one := replace(plain, mask=mask))), None)


def weigh(name, workload):
    variant = VARIANTS[name]
    operands = Operands.of(workload).fresh(differentiable=workload.mode != "fwd")
    return weigh_cpu(Call(variant.build(workload, variant.parameters()), operands, workload.mode)).weight.peak_bytes


def heavy(name, workload, batches=(8, 16)):
    """The workload with a batch for which it weighs a little more than 64 MiB, and what it weighs."""
    light, heavier = (weigh(name, replace(workload, batch=batch)) for batch in batches)
    batch, weight = ceil((batches[1] - batches[0]) * 1.1 * ENOUGH / (heavier - light)), 0
    while weight <= ENOUGH:
        batch = ceil(batch * 1.2 * ENOUGH / weight) if weight else batch
        weight = weigh(name, replace(workload, batch=batch))
    return replace(workload, batch=batch), weight


def assert_predicted(name, workload, weight):
    variant = VARIANTS[name]
    predicted = predicted_peak_bytes(Problem(variant, workload, variant.parameters()), weigh_cpu)
    assert weight > ENOUGH
    assert predicted == pytest.approx(weight, rel=0.1)


def cells(among, **changes):
    return [(name, mode) for name in sorted(among) for mode in MODES if shape(name, mode=mode, **changes)]


@pytest.mark.parametrize(("name", "mode"), cells(set(VARIANTS) - set(COMPILED), **SHORT))
def test_a_heavy_batch_is_known_before(name, mode):
    assert_predicted(name, *heavy(name, shape(name, mode=mode, **SHORT, **WIDE.get(name, {}))))


@pytest.mark.parametrize(("name", "mode"), LONG)
def test_a_long_sequence_is_known_before(name, mode):
    length, batch = LONG[name, mode]
    workload = shape(name, mode=mode, query_length=length, key_length=length, heads=1, kv_heads=1, batch=batch)
    assert_predicted(name, workload, weigh(name, workload))


def test_only_what_needs_a_gpu_is_left_out():
    here = {name for name, _ in cells(VARIANTS)}
    absent = {
        name
        for name, it in VARIANTS.items()
        if it.package is not None and find_spec(it.package.replace("-", "_")) is None
    }
    assert set(VARIANTS) - here - absent <= {"flash_attn", "sdpa_cudnn", "sdpa_efficient", "xformers"}
