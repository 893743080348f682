from __future__ import annotations

import pytest
import torch

from bench.fidelity import tasks, training
from bench.fidelity.trial import NO_ATTENTION, TrialCase
from tests.bench.attentions import dense, variant
from variants import bigbird
from variants._contract import NoParameters
from variants._pattern import bigbird_table


def case(task="recall", *, length=32, steps=20, pairs=4, seed=0, batch=16, name="it", parameters=None, **options):
    workload = training.workload(task, length=length, batch=batch, seed=seed, device="cpu")
    return TrialCase(
        kind="task",
        task=task,
        variant=name,
        workload=workload,
        parameters=parameters or {},
        options={"steps": steps, "pairs": pairs} | options,
    )


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def train(of, how=None, **more):
    return training.trained(of, how or variant(dense), NoParameters(), told=lambda stage: None, **more)


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    losses = [train(case(seed=seed)).accuracies for seed in (0, 0, 1)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_a_killed_training_goes_on_to_the_same_model(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_STEPS_BETWEEN", 5)
    monkeypatch.setattr(training, "_CHECKPOINT_SECONDS", 0.0)
    straight = train(case())
    checkpoint = tmp_path / "kept" / "it.pt"

    class KilledError(Exception):
        pass

    def kill(stage):
        if stage.startswith("step 15"):
            raise KilledError

    with pytest.raises(KilledError):
        training.trained(case(), variant(dense), NoParameters(), told=kill, checkpoint=checkpoint)
    assert checkpoint.is_file()
    stages = []
    rest = training.trained(case(), variant(dense), NoParameters(), told=stages.append, checkpoint=checkpoint)
    assert [stage.split()[1] for stage in stages] == ["15", "20"]  # it was kept at step 10
    assert (rest.accuracies, rest.final_accuracy) == (straight.accuracies, straight.final_accuracy)
    assert rest.notes == ["continued from a checkpoint"]


def test_a_solved_task_stops_early(monkeypatch):
    monkeypatch.setattr(training, "_STOP_AT", 0.0)
    monkeypatch.setattr(training, "SOLVED", 0.0)
    monkeypatch.setattr(training, "_STEPS_BETWEEN", 5)
    found = train(case(steps=50))
    assert (found.steps, found.stopped_early, found.steps_to_target) == (5, True, 5)
    assert 0 < found.seconds_to_target <= found.seconds


def test_without_attention_a_copy_cannot_be_made():
    found = training.trained(case("copy", name=NO_ATTENTION, steps=30), None, None, told=lambda stage: None)
    assert found.final_accuracy < 0.1
    assert found.chance == pytest.approx(1 / 64)


def test_a_loss_that_is_not_finite_ends_it():
    broken = variant(lambda workload, parameters: lambda query, key, value: value * float("nan"))
    with pytest.raises(ValueError, match="the loss is nan at step 0"):
        train(case(), broken)


def test_copies_of_bigbird_are_those_whose_source_its_pattern_shows():
    """Blocks 0 and 7 see all and are seen by all, and a source is four of eight blocks away: half of them are in sight.

    What is out of sight must be guessed: windows of two layers do not reach that far, and a relay through the global
    blocks would have to carry every symbol.
    """
    blocks = bigbird.Parameters(block=4, global_blocks=2, random_blocks=0)
    table = bigbird_table(blocks.term, 32, 0)
    in_sight = sum(bool(table[place // 4, (place - tasks.shift(32)) % 32 // 4]) for place in range(32)) / 32
    assert in_sight == 0.5
    found = training.trained(case("copy", steps=400), bigbird.VARIANT, blocks, told=lambda stage: None)
    assert found.final_accuracy == pytest.approx(in_sight + (1 - in_sight) / tasks.SYMBOLS, abs=0.02)
