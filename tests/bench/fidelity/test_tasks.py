from __future__ import annotations

import pytest
import torch

from bench.fidelity import tasks
from bench.fidelity.tasks import SILENT, TASKS


def drawn(name, length=64, count=32, seed="a", **options):
    return tasks.batch(TASKS[name], count=count, length=length, options=options, seed=seed)


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_gives_the_same_batch_and_another_one_another(name):
    first, again, other = drawn(name), drawn(name), drawn(name, seed="b")
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.answers, again.answers)
    assert not torch.equal(first.tokens, other.tokens)
    assert first.tokens.shape == first.answers.shape == (32, 64)
    assert int(first.tokens.max()) < TASKS[name].tokens
    asked = first.answers[first.answers != SILENT]
    assert len(asked)
    assert 0 <= int(asked.min()) <= int(asked.max()) < TASKS[name].answers


def test_recall_can_be_looked_up():
    batch = drawn("recall", pairs=5)
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        shown = dict(zip(tokens[0:10:2], tokens[1:10:2], strict=True))
        assert len(shown) == 5
        assert answers[:10] == [SILENT] * 10
        assert answers[10:] == [shown[key] - tasks.SYMBOLS for key in tokens[10:]]


def test_copies_stand_half_a_sequence_away():
    batch = drawn("copy")
    for place in range(64):
        assert torch.equal(batch.answers[:, place], batch.tokens[:, (place - 32) % 64])


def test_needles_stand_behind_their_mark_at_every_depth():
    batch = drawn("needle", count=400)
    for row in range(400):
        (place,) = (batch.tokens[row] == tasks.SYMBOLS).nonzero().flatten().tolist()
        assert batch.answers[row, 56:].tolist() == [int(batch.tokens[row, place + 1])] * 8
        assert batch.depths[row] == place * 4 // 55
    assert torch.bincount(batch.depths).min() > 60


def test_listops_come_to_what_a_stack_finds():
    batch = drawn("listops", count=300)
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        values = tasks.evaluated(tokens)
        assert [values.get(place, SILENT) for place in range(64)] == answers
    assert tasks.evaluated([11, 7, 10, 2, 9, 13, 5, 13, 12, 1, 8, 3, 13]) == {5: 2, 7: 7, 12: 3}
    counts = torch.bincount(batch.answers[batch.answers != SILENT], minlength=10)
    assert float(counts.max() / counts.sum()) == pytest.approx(TASKS["listops"].chance, abs=0.02)


def test_listops_fill_what_there_is():
    for length in (16, 64):
        batch = drawn("listops", length=length, count=200)
        assert (batch.answers != SILENT).any(dim=1).all()
        assert ((batch.tokens == 14).sum(dim=1) <= 17).all()  # the longest expression has 17 tokens


def test_lengths_that_a_task_has_not():
    assert tasks.obstacles(TASKS["recall"], 64, {"pairs": 16}) == []
    assert "recall takes 1 to 16 pairs at 64 tokens, got 17" in tasks.obstacles(TASKS["recall"], 64, {"pairs": 17})
    assert "at least 16 tokens" in tasks.obstacles(TASKS["copy"], 8, {})[0]
