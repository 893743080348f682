"""Which trials a suite means, and how they are put."""

from __future__ import annotations

import pytest

from bench.errors import WrongUsageError
from bench.fidelity import drop_in, model, training
from bench.fidelity.trial import DROP_IN, TASK
from bench.sweep import suite, trials

NAMES = ["exact", "linformer", "uniform"]


def resolve(variant, given):
    return {"rank": 128, **given} if variant == "linformer" else given


def cases(*tables, device="cpu"):
    return trials.cases(suite.parse({"trial": list(tables)}), NAMES, device, resolve)


def test_every_task_by_every_variant_seeds_last():
    found = cases({"task": ["copy", "recall"], "variants": ["exact", "no_attention"], "seed": [1, 0]})
    assert [(case.task, case.variant, case.workload.seed) for case in found] == [
        (task, variant, seed) for seed in (0, 1) for task in ("copy", "recall") for variant in ("exact", "no_attention")
    ]
    assert all(case.kind == TASK for case in found)
    assert [case.options for case in found[1:3]] == [{"steps": 2000}, {"steps": 2000, "pairs": 16}]


def test_nothing_cannot_be_dropped_in():
    found = cases({"task": "drop_in", "variants": "all", "documents": 50})
    assert [(case.kind, case.task, case.title, case.variant) for case in found] == [
        (DROP_IN, "news", "drop_in", name) for name in NAMES
    ]
    assert found[0].options == {"documents": 50}
    assert found[0].workload.mask == "full"


def test_parameters_are_complete_and_swept_and_equal_trials_made_once():
    table = {"task": "copy", "variants": "linformer", "param": {"linformer": {"rank": [8, 128]}}}
    found = cases(table, {"task": "copy", "variants": "linformer"})
    assert [case.parameters for case in found] == [{"rank": 8}, {"rank": 128}]
    assert cases(table, device="cuda:1")[0].workload.device == "cuda"


def test_an_unknown_variant_names_the_nearest():
    with pytest.raises(WrongUsageError, match="did you mean 'no_attention'"):
        cases({"task": "copy", "variants": "no_atention"})


def test_workloads_are_those_that_models_ask_for():
    """They are written without torch, apart from the models."""
    (copied,) = cases({"task": "copy", "variants": "exact", "batch": 8, "seq_len": 32, "mask": "causal", "seed": 3})
    asked = training.workload("copy", length=32, batch=8, seed=3, device="cpu", mask="causal")
    assert copied.workload == asked
    assert (asked.heads, asked.head_dim) == (model.HEADS, model.HEAD_DIM)
    (dropped,) = cases({"task": "drop_in", "variants": "exact", "seq_len": 32, "seed": 3})
    assert dropped.workload == drop_in.workload(length=32, seed=3, device="cpu")
