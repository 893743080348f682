from __future__ import annotations

import pytest

from bench import cells
from bench.record import Fidelity
from bench.report import ceiling, sections
from tests.bench import runs


def cell_records():
    """uniform 0.8, topk 0.4 at 64 keys and 0.2 at 256, of 1024."""
    return [
        one("uniform", 0.8, issued=1e6),
        one("topk", 0.4, parameters={"k": 64}, density=64 / 1024),
        one("topk", 0.2, parameters={"k": 256}, density=256 / 1024),
    ]


def one(variant, error, *, density=None, issued=1e9, useful=1e9, parameters=None, mask="full"):
    fidelity = Fidelity(relative_error=error, cosine=0.9, density=density)
    outcome = runs.measured(fidelity=fidelity, issued_flops=int(issued), useful_flops=int(useful))
    return runs.record(variant, outcome, parameters=parameters, mask=mask)


def fractions(*records):
    ((_, found),) = cells.gather(records).items()
    return {cell.contender.label: share for cell, share in ceiling.fractions(found).items()}, found


def test_a_fraction_is_of_the_way_from_floor_to_ceiling_at_equal_budget():
    found, _ = fractions(
        *cell_records(),
        one("bigbird", 0.5, density=128 / 1024),  # topk at 128, half way in log: 0.3
        one("linformer", 0.6, density=1.0, issued=64e6, useful=1024e6),  # what 64 keys cost
        one("local", 0.9, density=256 / 1024),
    )
    assert found == pytest.approx({
        "uniform": 0.0, "topk (k=64)": 1.0, "topk (k=256)": 1.0,
        "bigbird": (0.8 - 0.5) / (0.8 - 0.3), "linformer": (0.8 - 0.6) / (0.8 - 0.4), "local": (0.8 - 0.9) / 0.6,
    })  # fmt: skip


def test_there_is_none_outside_the_budgets_and_a_note_says_so():
    found, members = fractions(*cell_records(), one("bigbird", 0.1, density=0.5), one("linformer", 0.1, density=0.01))
    assert "bigbird" not in found
    assert "linformer" not in found
    note = ceiling.note(members, ceiling.fractions(members))
    assert "from 64 to 256" in note
    assert "Nor for bigbird (512) and linformer (10): outside the budgets" in note


def test_there_is_none_without_a_floor_or_a_ceiling_or_where_the_ceiling_is_no_better():
    sparse = one("bigbird", 0.5, density=0.1)
    assert fractions(one("uniform", 0.8), sparse)[0] == {}
    assert fractions(*cell_records()[1:], sparse)[0] == {}
    worse = [one("uniform", 0.3), *cell_records()[1:], one("bigbird", 0.2, density=70 / 1024)]
    assert "bigbird" not in fractions(*worse)[0]


def test_exact_attention_has_none_and_other_masks_have_their_own():
    records = [*cell_records(), one("naive_sdpa", 0.0), one("bigbird", 0.5, density=0.1, mask="causal")]
    assert set(fractions(*records)[0]) == {"uniform", "topk (k=64)", "topk (k=256)"}


def test_under_a_mask_the_ceiling_has_the_keys_that_it_has_a_weight_for():
    _, members = fractions(one("topk", 0.2, parameters={"k": 256}, density=0.4, mask="causal"))
    assert ceiling.budget(members[0]) == pytest.approx(0.4 * 1024)


def test_the_fidelity_table_says_it():
    _, members = fractions(*cell_records(), one("bigbird", 0.5, density=128 / 1024))
    table = sections.fidelities(members, ceiling.fractions(members))
    assert "| relative error, cosine, of the way |" in table
    assert "| ≈ `bigbird` | 0.50, cos 0.90, 0.60 |" in table
