from __future__ import annotations

import pytest

from bench.errors import WrongUsageError
from bench.sweep import suite


def test_one_value_or_a_list_of_them():
    parsed = suite.parse({"sweep": [{"seq_len": "1k", "heads": [4, 8, 4], "dtype": ["bf16", "float32"]}]})
    (sweep,) = parsed.sweeps
    assert (sweep.seq_len, sweep.heads, sweep.dtype) == ((1024,), (4, 8), ("bfloat16", "float32"))


def test_masks_become_canonical():
    (sweep,) = suite.parse({"sweep": [{"mask": ["causal+alibi", "alibi+causal+full"]}]}).sweeps
    assert sweep.mask == ("alibi+causal",)


def test_settings_stand_at_the_top():
    parsed = suite.parse({"time_budget": 2, "timeout": 30, "threads": 1, "processes": 3, "sweep": [{}, {}]})
    assert (parsed.time_budget, parsed.timeout, parsed.threads, parsed.processes) == (2, 30, 1, 3)
    assert len(parsed.sweeps) == 2


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [({}, 3.0), ({"processes": 4}, 0.75), ({"processes": 20}, 0.3), ({"processes": 20, "time_budget": 2}, 2.0)],
)
def test_processes_share_a_budget_that_nobody_gave(settings, seconds):
    assert suite.Suite(**settings).time_budget_seconds == seconds


def test_parameters_are_axes():
    (sweep,) = suite.parse({"sweep": [{"param": {"linformer": {"rank": [64, 128], "sharing": "kv"}}}]}).sweeps
    assert sweep.parameters == {"linformer": {"rank": (64, 128), "sharing": ("kv",)}}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "x.toml: expected at least one [[sweep]] table, or [[trial]]"),
        ({"trial": []}, "expected at least one [[sweep]] table, or [[trial]]"),
        ({"trial": {"task": "copy"}}, "expected at least one [[trial]] table, in two brackets"),
        ({"trial": [{"task": "copy"}]}, "x.toml, [[trial]] 1, variants: expected it"),
        ({"trial": [{"variants": "x"}]}, "x.toml, [[trial]] 1, task: expected it"),
        ({"trial": [{"task": "copie", "variants": "x"}]}, "task: task 'copie' is unknown, expected one of recall"),
        ({"trial": [{"task": "copy", "variants": "x", "seeds": 3}]}, "did you mean 'seed'?"),
        ({"trial": [{"task": "copy", "variants": "x", "steps": 10}]}, "steps: expected a whole number of at least 20"),
        ({"trial": [{"task": "copy", "variants": "x", "documents": 39}]}, "of at least 40, got 39"),
        (
            {"trial": [{"task": "drop_in", "variants": "x", "steps": 777}]},
            "[[trial]] 1, steps: expected a task that takes",
        ),
        (
            {"trial": [{"task": "drop_in", "variants": "x", "batch": 3}]},
            "batch: expected a task that takes it (recall, co",
        ),
        ({"trial": [{"task": "drop_in", "variants": "x", "mask": "full"}]}, "mask: expected a task that takes it"),
        (
            {"trial": [{"task": ["copy", "needle"], "variants": "x", "pairs": 7}]},
            "(recall), got copy, needle; leave it",
        ),
        (
            {"trial": [{"task": "copy", "variants": "x", "documents": 300}]},
            "documents: expected a task that takes it (dr",
        ),
        ({"trial": [{"task": "copy", "variants": "x", "pairs": [1, 2]}]}, "pairs: expected a whole number"),
        ({"trial": [{"task": "copy", "variants": "x", "mask": "sideways"}]}, "mask: expected a mask"),
        ({"trial": [{"task": "copy", "variants": "x"}], "trial_timeout": 0}, "trial_timeout: expected a number above"),
        ({"sweep": {}}, "expected at least one [[sweep]] table"),
        ({"sweep": [{}], "tmeout": 3}, "key 'tmeout' is unknown"),
        ({"sweep": [{}], "tmeout": 3}, "did you mean 'timeout'?"),
        ({"sweep": [{}, {"seqlen": 3}]}, "x.toml, [[sweep]] 2, key 'seqlen' is unknown"),
        ({"sweep": [{"seqlen": 3}]}, "did you mean 'seq_len'?"),
        ({"sweep": [{"batch": 0}]}, "[[sweep]] 1, batch: expected a whole number of at least 1, got 0"),
        ({"sweep": [{"seed": 2**63}]}, "seed: expected a whole number of at most 9223372036854775807, which a record"),
        ({"sweep": [{"heads": [8, str(10**20)]}]}, "heads: expected a whole number of at most 9223372036854775807"),
        (
            {"sweep": [{"param": {"topk": {"k": [8, 2**63]}}}]},
            "param: expected whole numbers of at most 92233720368547",
        ),
        ({"sweep": [{"param": {"topk": {"k": "-99999999999999999999"}}}]}, "got '-99999999999999999999'"),
        ({"sweep": [{"batch": 1.5}]}, "got 1.5"),
        ({"sweep": [{"batch": True}]}, "got True"),
        ({"sweep": [{"heads": []}]}, "got an empty list"),
        ({"sweep": [{"scale": float("nan")}]}, "scale: expected a number, got nan"),
        ({"sweep": [{"scale": -1}]}, "above 0"),
        ({"sweep": [{"variants": [3]}]}, "variants: expected text, got 3"),
        ({"sweep": [{"param": {"linformer": 3}}]}, "expected variant.name = value"),
        ({"sweep": [{}], "device": "gpu"}, "device: expected auto, cpu, cuda or cuda:1"),
        ({"sweep": [{}], "float32_precision": "low"}, "expected one of highest, high"),
    ],
)
def test_a_mistake_is_named_with_its_place(table, message):
    with pytest.raises(WrongUsageError) as error:
        suite.parse(table, "x.toml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_largest_whole_number_that_a_record_holds_is_fine():
    most = 2**63 - 1
    (sweep,) = suite.parse({"sweep": [{"seed": most, "param": {"topk": {"k": [str(most), most]}}}]}).sweeps
    assert (sweep.seed, sweep.parameters) == ((most,), {"topk": {"k": (str(most), most)}})


def test_a_key_of_one_of_several_tasks_is_fine():
    table = {"task": ["copy", "recall", "drop_in"], "variants": "x", "pairs": 7, "documents": 50, "mask": "causal"}
    (trial,) = suite.parse({"trial": [table]}).trials
    assert (trial.pairs, trial.documents, trial.mask) == (7, 50, "causal")


def test_options_replace_axes_in_every_sweep_and_settings():
    base = suite.parse({"timeout": 30, "sweep": [{"seq_len": 8, "mask": "causal"}, {"seq_len": 16}]})
    changed = suite.override(base, axes={"seq_len": ["32", "1k"]}, settings={"processes": 2})
    assert [sweep.seq_len for sweep in changed.sweeps] == [(32, 1024)] * 2
    assert [sweep.mask for sweep in changed.sweeps] == [("causal",), ("full",)]
    assert (changed.timeout, changed.processes) == (30, 2)


def test_options_add_to_parameters():
    base = suite.parse({"sweep": [{"param": {"linformer": {"rank": 64, "sharing": "kv"}}}]})
    changed = suite.override(
        base, axes={"param": {"linformer": {"rank": ["32"]}, "bigbird": {"block": ["8"]}}}, settings={}
    )
    assert changed.sweeps[0].parameters == {
        "linformer": {"rank": ("32",), "sharing": ("kv",)},
        "bigbird": {"block": ("8",)},
    }


def test_a_mistake_in_an_option_names_the_option():
    with pytest.raises(WrongUsageError, match="--seq-len-kv: expected a length"):
        suite.override(suite.Suite(), axes={"seq_len_kv": ["many"]}, settings={})


def test_a_file_of_ones_own(tmp_path):
    (tmp_path / "mine.toml").write_text('processes = 2\n[[sweep]]\nseq_len = ["1k"]\nparam.linformer.rank = 64\n')
    loaded = suite.load(str(tmp_path / "mine.toml"))
    assert (loaded.processes, loaded.sweeps[0].seq_len) == (2, (1024,))
    assert loaded.sweeps[0].parameters == {"linformer": {"rank": (64,)}}


def test_a_file_that_is_no_toml(tmp_path):
    (tmp_path / "mine.toml").write_text("[[sweep]\n")
    with pytest.raises(WrongUsageError, match=r"mine\.toml is not TOML"):
        suite.load(str(tmp_path / "mine.toml"))


def test_an_unknown_suite_names_the_nearest():
    with pytest.raises(WrongUsageError, match=r"suite 'qick' is unknown, expected one of .*did you mean 'quick'\?"):
        suite.load("qick")


@pytest.mark.parametrize("name", ["smoke", "quick", "gpu"])
def test_the_built_in_suites(name):
    loaded = suite.load(name)
    assert name in suite.built_in_suites()
    assert loaded.description
    assert loaded.baseline == "naive_sdpa"


# --- trials ---------------------------------------------------------------------------------------------------


def test_a_suite_of_trials_alone_and_one_of_both():
    trial = {"task": ["copy", "drop_in"], "variants": ["a", "b"], "seed": [0, 1], "param": {"a": {"k": 3}}}
    alone = suite.parse({"trial": [trial]})
    assert (alone.sweeps, alone.trial_timeout) == ((), 1800)
    (found,) = alone.trials
    assert (found.task, found.variants, found.seed) == (("copy", "drop_in"), ("a", "b"), (0, 1))
    assert (found.seq_len, found.steps, found.mask) == ((128,), 2000, "full")
    assert found.parameters == {"a": {"k": (3,)}}
    both = suite.parse({"sweep": [{}], "trial": [trial, trial | {"seq_len": "1k"}]})
    assert (len(both.sweeps), [each.seq_len for each in both.trials]) == (1, [(128,), (1024,)])


def test_options_reach_trials_where_trials_have_such_a_thing():
    base = suite.parse({"sweep": [{}], "trial": [{"task": "copy", "variants": "a", "param": {"a": {"k": 3}}}]})
    axes = {"variants": ["b", "c"], "skip": ["c"], "param": {"b": {"k": ["4"]}}, "seq_len": ["64"], "mask": ["causal"]}
    changed = suite.override(base, axes=axes | {"seed": ["0", "1"]}, settings={})
    assert (changed.sweeps[0].seq_len, changed.sweeps[0].variants) == ((64,), ("b", "c"))
    (trial,) = changed.trials
    assert (trial.variants, trial.skip, trial.seq_len, trial.mask) == (("b", "c"), ("c",), (128,), "full")
    assert (trial.seed, changed.sweeps[0].seed) == ((0, 1), (0, 1))
    assert trial.parameters == {"a": {"k": (3,)}, "b": {"k": ("4",)}}


def test_an_axis_that_nothing_takes_is_refused():
    base = suite.parse({"trial": [{"task": "copy", "variants": "a"}]})
    with pytest.raises(WrongUsageError, match="--seq-len: this suite has trials alone"):
        suite.override(base, axes={"seq_len": ["64"]}, settings={})


@pytest.mark.parametrize(("name", "seeds"), [("fidelity-quick", (0,)), ("fidelity", (0, 1, 2))])
def test_the_suites_of_fidelity_ask_three_questions(name, seeds):
    loaded = suite.load(name)
    tasks = {task for trial in loaded.trials for task in trial.task}
    assert tasks == ({"drop_in", "recall"} if name == "fidelity-quick" else set(suite.TASKS))
    for table in (*loaded.sweeps, *loaded.trials):
        assert {"sdpa_flash", "uniform", "topk"} <= set(table.variants)
        assert table.seed == seeds
    assert all("no_attention" in trial.variants for trial in loaded.trials if "drop_in" not in trial.task)
