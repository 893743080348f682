"""Small problems, an attention that is right, and what makes a variant of it."""

from __future__ import annotations

import torch

from bench.record import Case, Settings
from variants._contract import Complexity, NoParameters, Variant, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import exact, expand_heads, masked_softmax

torch.set_num_threads(1)  # the suite runs on as many processes as there are cores

SETTINGS = Settings(threads=1, time_budget_seconds=0.02)


def small(**changes):
    """A workload that takes a millisecond."""
    values = {"heads": 2, "kv_heads": 2, "query_length": 96, "key_length": 96, "head_dim": 16} | changes
    return Workload(**values)


def case(workload, **parameters):
    return Case(variant="it", workload=workload, parameters=parameters)


def weights_of(workload, query, key):
    """Attention weights, written from scratch for the terms that tests use."""
    pattern = Pattern.of(workload)
    scores = query @ expand_heads(key, workload).mT * workload.softmax_scale
    if pattern.mask.softcap is not None:
        scores = pattern.mask.softcap * torch.tanh(scores / pattern.mask.softcap)
    allowed, bias = pattern.dense()
    return masked_softmax(scores if bias is None else scores + bias.to(scores.dtype), allowed)


def dense(workload, parameters=None):
    """The builder of an attention that is right."""
    del parameters
    return lambda query, key, value: weights_of(workload, query, key) @ expand_heads(value, workload)


def always(attend):
    """A builder of ``attend``, whatever the workload."""
    return lambda workload, parameters: attend


def after(change):
    """A builder of a right attention whose output goes through ``change``."""

    def build(workload, parameters):
        attend = dense(workload, parameters)
        return lambda query, key, value: change(attend(query, key, value))

    return build


def variant(build=dense, **changes):
    values = {
        "name": "it",
        "family": "exact",
        "exact": True,
        "summary": "for tests",
        "parameters": NoParameters,
        "build": build,
        "obstacles": lambda workload, parameters: [],
        "reference": exact,
        "flops": lambda workload, parameters: 1000,
        "complexity": Complexity(2, 2),
    }
    return Variant(**(values | changes))


def mask_of(workload):
    return Mask.parse(workload.mask)
