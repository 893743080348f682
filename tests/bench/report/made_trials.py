"""Made-up trials for the tests of reports; no model produced them."""

from __future__ import annotations

from bench.fidelity.trial import Attention, Reading, Replaced, Trained, TrialCase, TrialRecord
from bench.record import About
from tests.bench import runs
from variants._contract import Workload

TOKENS = ["[CLS]", "the", "bank", "##s", "注意力"]
FLOOR = About(family="floor", exact=False)


def attention(variation=0.2, *, lowest=0.0):
    spread = [[0.2] * len(TOKENS) for _ in TOKENS]
    given = [[lowest, *row[1:]] for row in spread]
    return Attention(
        entropy=2.0, exact_entropy=3.0, distance=10.0, exact_distance=30.0, rollout_total_variation=variation,
        rollout_top10_kept=0.5, map_layer=2, tokens=TOKENS, map=given, exact_map=spread, rollout=given,
        exact_rollout=spread,
    )  # fmt: skip


def replaced(cosine, **changes):
    known = {
        "documents": 80, "cosine": cosine, "least_cosine": cosine - 0.1, "neighbours_kept": 0.5,
        "rank_correlation": 0.7, "apart": 0.1, "accuracy": [0.8, 0.9], "macro_f1": [0.8, 0.9],
        "moved_accuracy": [0.7, 0.8], "moved_macro_f1": [0.7, 0.8], "exact_accuracy": [0.9, 0.9],
        "exact_macro_f1": [0.9, 0.9], "seconds": 3.0,
    }  # fmt: skip
    return Replaced(**(known | changes))


def trained(accuracy):
    solved = accuracy >= 0.9
    return Trained(
        accuracies=[(100, accuracy)], final_accuracy=accuracy, steps=100, seconds=9.0,
        steps_to_target=100 if solved else None, seconds_to_target=8.0 if solved else None, chance=0.125,
        parameters=1000, stopped_early=solved,
    )  # fmt: skip


def record(variant, outcome, *, seed=0, length=128, task="news", parameters=None, run_id="trials"):
    """Of a drop-in, or of any other task."""
    is_drop_in = task == "news"
    heads = 12 if is_drop_in else 1
    shape = Workload(batch=8, heads=heads, kv_heads=heads, query_length=length, key_length=length, head_dim=32,
                     inputs=task, seed=seed)  # fmt: skip
    case = TrialCase(
        kind="drop_in" if is_drop_in else "task", task=task, variant=variant, parameters=parameters or {},
        workload=shape, options={"documents": 80} if is_drop_in else {"steps": 500},
    )  # fmt: skip
    about = FLOOR if variant == "no_attention" else runs.ABOUT.get(variant, runs.approximate("kernel"))
    return TrialRecord(
        run_id=run_id, case=case, outcome=outcome, about=about, settings=runs.SETTINGS, host=runs.CPU,
        source=runs.SOURCE, command="python -m bench train", at="2024-03-02T12:00:00+00:00",
    )  # fmt: skip


def tried(*records, problems=()):
    return Reading(list(records), list(problems))
