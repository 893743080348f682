from __future__ import annotations

import msgspec
import pytest

from bench import store
from bench.errors import NotComparableError
from bench.fidelity import comparison, trial
from bench.fidelity.trial import Trained, TrialCase, TrialRecord
from bench.record import Failed, Unsupported, encode
from tests.bench.runs import CPU, EXACT, GPU, SETTINGS, SOURCE, approximate
from tests.bench.runs import record as operator
from variants._contract import Workload


def trained(accuracy, steps=300):
    return Trained(
        accuracies=[(steps, accuracy)],
        final_accuracy=accuracy,
        steps=steps,
        seconds=10.0,
        steps_to_target=steps if accuracy >= 0.9 else None,
        seconds_to_target=8.0 if accuracy >= 0.9 else None,
        chance=1 / 64,
        parameters=1000,
        stopped_early=False,
    )


def record(variant, outcome, seed=0):
    workload = Workload(batch=32, heads=1, kv_heads=1, query_length=128, key_length=128, inputs="recall", seed=seed)
    case = TrialCase(
        kind="task", task="recall", variant=variant, workload=workload, options={"steps": 500, "pairs": 16}
    )
    about = EXACT if variant == "exact" else approximate("sparse")
    return TrialRecord(run_id="r", case=case, outcome=outcome, about=about, settings=SETTINGS, host=CPU, source=SOURCE)


def test_variants_are_ranked_where_exact_attention_solves_every_seed():
    (table,) = comparison.tables(
        [
            record("low", trained(0.1)),
            *(record("exact", trained(1.0), seed) for seed in (0, 1)),
            record("low", trained(0.3), 1),
        ]
    )
    assert table.refusal is None
    assert [row[:5] for row in table.rows] == [
        ["exact", "1.000", "1.000", "2 of 2", "300"],
        ["low", "0.200", "0.100", "0 of 2", "—"],
        ["chance", "0.016", "", "", ""],
    ]
    assert "preliminary" not in table.title
    (once,) = comparison.tables([record("exact", trained(1.0))])
    assert once.title == ("recall, N = 128, 16 pairs, at most 500 steps of 32; chance 1.6%; one seed: preliminary")


def test_machines_are_never_mixed():
    other = msgspec.structs.replace(record("exact", trained(1.0)), host=GPU)
    assert len(comparison.tables([record("exact", trained(1.0)), other])) == 2


def test_nothing_is_ranked_where_it_does_not():
    records = [record("low", trained(0.1)), record("exact", trained(1.0), 0), record("exact", trained(0.5), 1)]
    (table,) = comparison.tables(records)
    assert table.refusal == "recall: exact does not reach 90% on seed 1, so nothing is ranked; give more --steps"
    assert [row[0] for row in table.rows] == ["low", "exact", "chance"]
    (failed,) = comparison.tables([record("exact", Failed(stage="start", message="no"))])
    assert "does not reach 90% on seed 0" in failed.refusal
    assert failed.rows[0][-1] == "failed"
    assert "no exact attention" in comparison.refusal([record("low", trained(1.0))])


def test_what_cannot_be_made_is_told_in_place_of_what_was_not_reached():
    none = [record("low", Unsupported(reasons=["too short"])), record("exact", Unsupported(reasons=["too short"]))]
    assert comparison.refusal(none) == "recall: 2 of 2 trials are unsupported: too short"
    assert comparison.refusal(none[:1]) == "recall: 1 of 1 trial is unsupported: too short"
    some = [none[0], record("exact", trained(1.0))]
    assert comparison.refusal(some) is None
    assert comparison.unsupported(some) == "1 of 2 trials are unsupported: too short"
    assert comparison.unsupported(some[1:]) is None


def test_an_interval_is_students():
    assert comparison.interval([0.5]) == "0.500"
    assert comparison.interval([0.4, 0.5, 0.6]) == "0.500 ± 0.248"


def test_trials_stand_beside_other_lines_and_each_reader_takes_its_own(tmp_path):
    path = tmp_path / "run.jsonl"
    made = record("exact", trained(1.0))
    with store.Appender(path) as appender:
        appender.append(operator(), made, record("low", trained(0.5)), record("low", trained(0.7)))
    with path.open("ab") as file:
        file.write(encode(made).replace(b'"status":"trained"', b'"status":"taught"') + b"\n")
        file.write(b'{"schema":1,"case":{"kind":"task"\n')
    apart = store.read(path, apart=trial.KINDS)
    found = trial.of_lines(apart.apart)
    assert found.records[0] == made
    assert [each.outcome.final_accuracy for each in found.records] == [1.0, 0.7]  # the last line of a case counts
    assert (len(apart.records), apart.skipped) == (1, {})
    assert "run.jsonl line 5: not a trial" in found.problems[0]
    assert "run.jsonl line 6: " in apart.problems[0]
    reading = store.read(path)
    assert (len(reading.records), reading.skipped) == (1, {"task": 4})
    path.write_bytes(b'{"schema":2,"case":{"kind":"task"}}\n')
    with pytest.raises(NotComparableError, match="has schema 2"):
        store.read(path, apart=trial.KINDS)
