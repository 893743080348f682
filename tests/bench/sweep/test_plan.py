from __future__ import annotations

import subprocess
import sys

import pytest

from bench.errors import WrongUsageError
from bench.sweep import plan, suite
from bench.sweep.plan import Cell

NAMES = ["naive_sdpa", "sdpa_flash", "sdpa_math", "linformer"]


def resolve(variant, given):
    return {"rank": 128, **given} if variant == "linformer" else given


def cases(*sweeps, device="cpu", **settings):
    return plan.cases(suite.parse({**settings, "sweep": list(sweeps)}), NAMES, device, resolve)


def test_the_product_of_the_axes():
    planned = cases(
        {
            "variants": ["naive_sdpa", "sdpa_math"],
            "seq_len": [8, 16],
            "mask": ["full", "causal"],
            "mode": ["fwd", "bwd"],
        }
    )
    assert len(planned) == 16
    assert len({case.key() for case in planned}) == 16


def test_all_is_the_default_and_patterns_stand_for_several():
    assert [case.variant for case in cases({})] == NAMES
    assert [case.variant for case in cases({"variants": "sdpa_*"})] == ["sdpa_flash", "sdpa_math"]
    assert [case.variant for case in cases({"variants": ["sdpa_*", "sdpa_math"], "skip": "*flash"})] == ["sdpa_math"]


@pytest.mark.parametrize("key", ["variants", "skip"])
def test_an_unknown_variant_names_the_nearest(key):
    with pytest.raises(WrongUsageError, match=r"'linfromer' is unknown.*did you mean 'linformer'\?"):
        cases({key: "linfromer"})


def test_defaults_follow_the_query_and_the_heads():
    (case,) = cases({"variants": "naive_sdpa", "seq_len": 48, "heads": 6})
    workload = case.workload
    assert (workload.query_length, workload.key_length, workload.heads, workload.kv_heads) == (48, 48, 6, 6)


def test_key_lengths_and_key_heads_of_their_own():
    planned = cases({"variants": "naive_sdpa", "seq_len": [8, 16], "seq_len_kv": [32, 64], "kv_heads": [2, 8]})
    shapes = {(case.workload.query_length, case.workload.key_length, case.workload.kv_heads) for case in planned}
    assert shapes == {(query, key, heads) for query in (8, 16) for key in (32, 64) for heads in (2, 8)}


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(WrongUsageError, match="multiple of kv_heads, got 8 and 3"):
        cases({"kv_heads": 3})


def test_a_case_is_planned_once_however_it_is_spelled():
    planned = cases(
        {"variants": "naive_sdpa", "mask": "causal", "kv_heads": 8, "value_head_dim": 64, "scale": 0.125},
        {"variants": "naive_sdpa", "mask": "full+causal", "seq_len": "1k"},
    )
    assert len(planned) == 1


def test_parameters_are_complete_and_swept():
    planned = cases({"variants": ["linformer", "naive_sdpa"], "param": {"linformer": {"rank": [64, 128]}}})
    assert [(case.variant, case.parameters) for case in planned] == [
        ("linformer", {"rank": 64}),
        ("linformer", {"rank": 128}),
        ("naive_sdpa", {}),
    ]
    assert cases({"variants": "linformer"})[0].parameters == {"rank": 128}


def test_the_device_has_no_index_in_a_case():
    assert cases({"variants": "naive_sdpa"}, device="cuda:3")[0].workload.device == "cuda"


def test_parameters_of_a_variant_that_is_not_chosen_are_refused():
    with pytest.raises(WrongUsageError, match="not among the chosen variants"):
        cases({"variants": "naive_sdpa", "param": {"linformer": {"rank": 3}}})


def test_a_baseline_must_be_chosen():
    assert cases({"variants": "sdpa_*"}, baseline="sdpa_math")
    with pytest.raises(WrongUsageError, match="--baseline: variant 'naive_sdpa' is unknown"):
        cases({"variants": "sdpa_*"}, baseline="naive_sdpa")


def test_what_a_suite_says_of_variants_that_options_leave_out_does_not_count():
    told = {"variants": "sdpa_*", "param": {"linformer": {"rank": 3}}}
    base = suite.parse({"baseline": "linformer", "sweep": [told | {"variants": ["sdpa_*", "linformer"]}]})

    def narrowed(axes, **settings):
        changed = suite.override(base, axes={"variants": ["sdpa_math"]} | axes, settings=settings)
        return plan.cases(changed, NAMES, "cpu", resolve)

    assert [case.variant for case in narrowed({})] == ["sdpa_math"]
    with pytest.raises(WrongUsageError, match="--param names linformer"):
        narrowed({"param": {"linformer": {"rank": ["4"]}}}, baseline="sdpa_math")
    with pytest.raises(WrongUsageError, match="--baseline: variant 'linformer' is unknown"):
        narrowed({}, baseline="linformer")


def test_no_attention_is_for_trials_alone():
    parsed = suite.parse({"sweep": [{}], "trial": [{"task": "copy", "variants": "sdpa_math"}]})
    chosen = suite.override(parsed, axes={"variants": ["no_attention", "naive_sdpa"]}, settings={})
    assert [case.variant for case in plan.cases(chosen, NAMES, "cpu", resolve)] == ["naive_sdpa"]
    with pytest.raises(WrongUsageError, match="'no_attention' is unknown"):
        cases({"variants": "no_attention"})


def test_nothing_left_is_a_mistake():
    with pytest.raises(WrongUsageError, match="everything chosen is skipped"):
        cases({"variants": "naive_sdpa", "skip": "naive_sdpa"})


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_share_out_everything_once(count):
    planned = cases({"seq_len": [8, 16, 32], "mask": ["full", "causal"]})
    shards = [plan.shard(planned, f"{index}/{count}") for index in range(1, count + 1)]
    assert sorted(case.key() for part in shards for case in part) == sorted(case.key() for case in planned)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_what_is_no_shard(text):
    with pytest.raises(WrongUsageError, match="--shard: expected i/n"):
        plan.shard(cases({}), text)


def test_a_shard_without_a_case_is_refused_in_good_grammar():
    with pytest.raises(WrongUsageError, match="got 1 case; take fewer shards"):
        plan.shard(cases({"variants": "naive_sdpa"})[:1], "2/2")


def cells_of(processes):
    planned = cases({"seq_len": [8, 16, 32, 64]})
    return [Cell(case, process) for process in range(processes) for case in planned]


def test_replicates_are_passes_and_a_group_is_one_variant():
    cells = cells_of(3)
    groups = list(plan.passes(cells, "seed"))
    assert [group[0].process for group in groups] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(len({(cell.case.variant, cell.process) for cell in group}) == 1 for group in groups)
    assert sorted(map(repr, cells)) == sorted(repr(cell) for group in groups for cell in group)


def test_order_is_shuffled_by_the_seed_and_differs_between_replicates():
    def order(seed):
        return [
            [(cell.case.variant, cell.case.workload.query_length) for cell in group]
            for group in plan.passes(cells_of(4), seed)
        ]

    assert order("a") == order("a")
    assert order("a") != order("b")
    passes = [order("a")[start : start + 4] for start in range(0, 16, 4)]
    assert len({tuple(group[0][0] for group in one) for one in passes}) > 1
    assert len({tuple(length for _, length in group) for group in order("a")}) > 1


def test_planning_needs_no_torch():
    names = "bench.sweep.suite, bench.sweep.blueprint, bench.sweep.stations, bench.sweep.session"
    code = f"import sys, {names}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
