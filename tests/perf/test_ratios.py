"""What is promised of our variants against what else computes the same, pair by pair; and the arithmetic of it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

from bench.measure.clock import Sample
from tests.perf import ratio_tables, ratios
from tests.perf.ratios import PAIRS, Figures, Pair, Ratio, Refused, Side
from variants._contract import Workload

MARGIN = 0.05  # what one process may be off by, whatever its interval says


@pytest.mark.perf
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PAIRS)
def test_ratio(name, figures, request):
    pair = PAIRS[name]
    found = figures[name] = ratios.kept(request.config.getoption("--ratios-dir", default=None), pair)
    if not found.ratios:
        pytest.skip("; ".join(dict.fromkeys(reason for one in found.refused for reason in one.reasons)))
    assert not (problems := ratio_tables.missed(pair, found.ratios, MARGIN)), "\n".join(problems)


# --- the arithmetic -------------------------------------------------------------------------------------------------


class FakeClock:
    """Gives what it is told, one block after the other; a block takes a second of its own time."""

    def __init__(self, log, name, seconds):
        self.log, self.name, self.seconds, self.time = log, name, iter(seconds), 0.0

    def sample(self):
        self.log.append(self.name)
        self.time += 1
        return Sample(next(self.seconds), None)

    def now(self):
        return self.time


def test_both_take_turns_and_change_who_is_first():
    log = []
    ours, theirs = ratios.take_turns([FakeClock(log, "a", range(100)), FakeClock(log, "b", range(100, 200))])
    assert "".join(log) == "baabbaab"  # ours and theirs four times: one to warm up, and the three at least
    assert (ours, theirs) == ([0, 1, 2, 3], [100, 101, 102, 103])


def test_quick_calls_have_so_many_rounds():
    log = []
    clock = FakeClock(log, "a", range(1000))
    clock.now = lambda: 0.0
    assert len(ratios.take_turns([clock])[0]) == 1 + ratios.MOST_ROUNDS


def ratio(length=1024, speedups=(2.0, 2.1, 1.9), ours=100, theirs=300, mode="fwd"):
    return Ratio(
        pair="it", length=length, mode=mode, ours_seconds=1, theirs_seconds=2, speedups=list(speedups),
        ours_peak_bytes=ours, theirs_peak_bytes=theirs,
    )  # fmt: skip


PAIR = Pair("it", Side("a"), Side("b"), faster={"fwd": 2}, lighter={"fwd": 3})


def test_what_is_promised_is_held_against_the_better_end_of_the_interval():
    assert ratio_tables.missed(PAIR, [ratio()], 0.05) == []
    slow = ratio(speedups=[1.5] * 9)
    assert ratio_tables.missed(PAIR, [slow], 0.05) == ["it fwd 1024: 1.50× (1.50–1.50) as fast, promised are 2×"]
    assert ratio_tables.missed(PAIR, [slow], 0.25) == []
    unsure = ratio(speedups=[1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 2.5])
    assert ratio_tables.missed(PAIR, [unsure], 0.05) == []


def test_a_floor_is_held_where_more_is_out_of_reach():
    pair = replace(PAIR, less_at={1024: 1.4}, floor="it is known why")
    slow = [ratio(speedups=[1.5] * 9), ratio(length=2048, speedups=[1.5] * 9, ours=200, theirs=900)]
    assert [problem.split(":")[0] for problem in ratio_tables.missed(pair, slow, 0.05)] == ["it fwd 2048"]
    assert ratio_tables.missed(replace(pair, less_at={1024: 1.7}), slow[:1], 0.05)


def test_memory_is_held_to_what_is_promised_and_to_linear_growth():
    (fat,) = ratio_tables.missed(PAIR, [ratio(theirs=299)], 0.05)
    assert fat == "it fwd 1024: 2.99× less memory, promised are 3×"
    grown = [ratio(), ratio(length=2048, ours=230, theirs=2300)]
    (grows,) = ratio_tables.missed(PAIR, grown, 0.05)
    assert "grows faster" in grows
    assert ratio_tables.missed(replace(PAIR, is_linear=False), grown, 0.05) == []
    assert ratio_tables.missed(PAIR, [ratio(), ratio(length=2048, ours=210, theirs=2300)], 0.05) == []


def replace_ratios(figures, several):
    return msgspec.structs.replace(figures, ratios=several, refused=[])


def test_tables():
    name = "bigbird"
    found = Figures(
        ratios=[ratio(), ratio(length=8192, speedups=[9.0], theirs=90000)],
        refused=[Refused(pair=name, length=2048, mode="fwd", reasons=["it rains"])],
        torch_version="2.0", cpu="A fine CPU", cores=2,
    )  # fmt: skip
    text = ratio_tables.section({name: found})
    rows = [line for line in text.splitlines() if line.startswith("| `bigbird`")]
    start = "| `bigbird` | `transformers_bigbird` training=false | `full` | `fwd` |"
    assert rows[0].startswith(f"{start} **2×** | 2.00× (")
    assert rows[0].endswith(" |  |  | 9.00× |")
    assert rows[1] == f"{start} – | 3× |  |  | 900× |"
    training = ratio_tables.section({"bigbird, training": replace_ratios(found, [ratio(mode="fwd_bwd")])})
    assert "promises only 1.6× at 1k: At 1k the blocks cover 55%" in training
    assert "on A fine CPU, 2 cores, torch 2.0." in text
    assert "- bigbird and transformers_bigbird: it rains" in text


def test_the_section_is_replaced_and_the_rest_stays():
    page = "# Variants\n\ntext\n\n## Measured ratios\n\nold\n"
    assert ratio_tables.written_into(page, "new") == "# Variants\n\ntext\n\n## Measured ratios\n\nnew\n"
    with pytest.raises(ValueError, match="Measured ratios"):
        ratio_tables.written_into("# Variants\n", "new")


def test_figures_are_kept_and_taken_from_where_they_are(tmp_path, monkeypatch):
    calls = []
    one = Figures(ratios=[ratio()], refused=[], torch_version="2.0", cpu="CPU", cores=None)
    monkeypatch.setattr(ratios, "measured_apart", lambda name: calls.append(name) or one)
    assert ratios.kept(tmp_path / "new", PAIR) == ratios.kept(tmp_path / "new", PAIR) == one
    assert calls == ["it"]
    assert ratios.kept(None, PAIR) == one
    assert calls == ["it", "it"]


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_the_formula_of_linear_attention_is_that_of_the_variant(mask):
    workload = Workload(heads=2, kv_heads=2, query_length=70, key_length=70, head_dim=8, dtype="float64", mask=mask)
    inputs = torch.randn(3, 1, 2, 70, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    both = [side.build(workload)(*inputs) for side in (Side("linear_attention"), PAIRS["linear_attention"].theirs)]
    torch.testing.assert_close(*both)


def test_a_pair_is_measured(monkeypatch):
    monkeypatch.setattr(ratios, "BUDGET_SECONDS", 0.0)
    pair = Pair(
        "it", Side("linformer", {"rank": 8}), Side("naive_sdpa"), faster={"fwd": 0, "fwd_bwd": 0}, lengths=(64,)
    )
    found = ratios.measured_here(pair)
    assert [one.mode for one in found.ratios] == ["fwd", "fwd_bwd"]
    for one in found.ratios:
        assert len(one.speedups) == ratios.FEWEST_ROUNDS
        assert all(speedup > 0 for speedup in one.speedups)
        assert one.theirs_peak_bytes > one.ours_peak_bytes > 0
    refused = ratios.measured_here(replace(pair, mask="softcap:30"))
    assert not refused.ratios
    assert "Linformer" in refused.refused[0].reasons[0]
