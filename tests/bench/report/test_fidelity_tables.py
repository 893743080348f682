"""By input source, over seeds, which figure predicts, and what was published."""

from __future__ import annotations

import statistics

import pytest

from bench import cells
from bench.record import Fidelity
from bench.report import prediction, published, seeds, sources
from tests.bench import runs
from tests.bench.report import made_trials as made

ERRORS = {"bigbird": 0.2, "linformer": 0.4, "reformer_lsh": 0.6, "uniform": 0.8}


def bare(inputs, errors, *, seed=0, length=1024, exact=True, **fields):
    found = [
        runs.record(
            variant,
            runs.measured(fidelity=Fidelity(relative_error=error, cosine=1 - error, **fields)),
            inputs=inputs, seed=seed, length=length,
        )
        for variant, error in errors.items()
    ]  # fmt: skip
    return [*found, runs.record("naive_sdpa", inputs=inputs, seed=seed, length=length)] if exact else found


def families(*records):
    return sources.families(cells.gather(records))


def backwards(errors):
    return dict(zip(errors, reversed(errors.values()), strict=True))


# --- by source ----------------------------------------------------------------------------------------------------


def test_grounds_that_differ_in_source_and_seed_are_one_family_real_ones_first():
    (family,) = families(
        *bare("normal", ERRORS), *bare("minilm:2", ERRORS), *bare("matched", ERRORS), *bare("minilm:2", ERRORS, seed=1)
    )
    assert list(family.sources) == ["minilm:2", "matched", "normal"]
    assert list(family.sources["minilm:2"]) == [0, 1]
    assert families(*bare("normal", ERRORS), *bare("normal", ERRORS, seed=1)) == []


@pytest.mark.parametrize(
    ("source", "real"),
    [("minilm", True), ("minilm:3@notes.txt#12345678", True), ("minilm@x", True), ("file:a.safetensors#1f0c9a22", True),
     ("matched:2", False), ("normal", False)],
)  # fmt: skip
def test_which_sources_are_real(source, real):
    assert sources.is_real(source) == real


def test_errors_stand_beside_each_other_in_the_order_of_the_first_source():
    (family,) = families(*bare("minilm", ERRORS), *bare("normal", backwards(ERRORS)))
    lines = sources.errors(family, family.places[0]).splitlines()
    assert lines[0] == "| error | `minilm` | `normal` |"
    assert lines[2] == "| ≈ `bigbird` | 0.20 | 0.80 |"
    assert lines[5] == "| ≈ `uniform` (floor) | 0.80 | 0.20 |"
    assert lines[-1].endswith("errors with those on `minilm`: `normal` -1.00 (3 approximations).")


def test_errors_on_several_seeds_are_a_mean_and_a_range():
    (family,) = families(*bare("minilm", {"bigbird": 0.2}), *bare("minilm", {"bigbird": 0.4}, seed=1))
    assert "| ≈ `bigbird` | 0.30 [0.20, 0.40] |" in sources.errors(family, family.places[0])
    assert "| ≈ `bigbird` | 0.30 [0.20, 0.40] |  | 1024 | 0.70 |" in sources.metrics(family, "minilm", family.places[0])


def test_a_row_for_each_source_where_there_is_one_workload():
    both = families(*bare("minilm", ERRORS), *bare("normal", ERRORS))
    assert sources.has_all_fronts(both[0])
    (one,) = families(*bare("minilm", ERRORS))
    assert not sources.has_all_fronts(one)


# --- over seeds ---------------------------------------------------------------------------------------------------


def test_ranks_hold_where_every_pair_of_seeds_agrees():
    found = families(*(record for seed in range(3) for record in bare("minilm", ERRORS, seed=seed)))
    (ranking,) = seeds.rankings(found, [])
    assert seeds.agreement(ranking) == seeds.Agreement(1.0, (0, 1), 4)
    assert "| 3 | 4 | 1.00 | 0 and 1 | holds | yes |" in seeds.section([ranking])


def test_the_worst_pair_of_seeds_counts():
    swapped = ERRORS | {"bigbird": 0.4, "linformer": 0.2}
    found = families(
        *bare("minilm", ERRORS), *bare("minilm", ERRORS, seed=1), *bare("minilm", swapped, seed=5)
    )  # fmt: skip
    (ranking,) = seeds.rankings(found, [])
    worst = seeds.agreement(ranking)
    assert (worst.tau, worst.seeds) == (pytest.approx(1 - 2 / 6), (0, 5))  # one pair of six is swapped
    assert "| 0.67 | 0 and 5 | **does not hold** |" in seeds.section([ranking])


def test_one_seed_is_preliminary_and_exact_attention_is_no_rank():
    (ranking,) = seeds.rankings(families(*bare("minilm", ERRORS)), [])
    assert set(ranking.by_seed[0]) == set(ERRORS)
    assert seeds.agreement(ranking) is None
    assert "| 1 | 4 | – | – | one seed: preliminary | yes |" in seeds.section([ranking])


def test_who_is_behind_uniform_weights_is_named_with_the_reason():
    found = families(*bare("minilm", ERRORS | {"linformer": 4.5}))
    told = seeds.section(seeds.rankings(found, []))
    assert "one seed: preliminary | no |" in told
    assert "`uniform` is not last by error on minilm, full, fwd, N = 1k: `linformer` is behind it" in told
    assert "not trained with it" in told
    without = {name: error for name, error in ERRORS.items() if name != "uniform"}
    assert "| not tried |" in seeds.section(seeds.rankings(families(*bare("minilm", without)), []))


def test_trials_are_ranked_where_they_may_be():
    cosines = {"bigbird": 0.9, "linformer": 0.8, "uniform": 0.4, "naive_sdpa": 1.0}
    dropped = [
        made.record(name, made.replaced(cosine), seed=seed) for name, cosine in cosines.items() for seed in (0, 1)
    ]
    solved = [
        made.record(name, made.trained(accuracy), task="recall", seed=seed)
        for name, accuracy in (cosines | {"no_attention": 0.1}).items()
        for seed in (0, 1)
    ]
    unsolved = [
        made.record("naive_sdpa", made.trained(0.5), task="copy"),
        made.record("uniform", made.trained(0.2), task="copy"),
    ]
    by_drop_in, by_task = seeds.rankings([], [*dropped, *solved, *unsolved])
    assert by_drop_in.name == "cosine, dropped in, 128 tokens"
    assert by_task.name == "accuracy, recall, N = 128"
    assert set(by_task.by_seed[1]) == {"bigbird", "linformer", "uniform"}
    assert seeds.agreement(by_drop_in).tau == 1.0


# --- prediction ---------------------------------------------------------------------------------------------------

FIVE = ERRORS | {"performer": 0.5}


def dropped(cosines, **parameters):
    return [
        made.record(name, made.replaced(cosine), parameters=parameters.get(name)) for name, cosine in cosines.items()
    ]


def test_a_figure_that_orders_as_the_drop_in_does_predicts_it():
    trials = dropped({name: 1 - error for name, error in FIVE.items()} | {"naive_sdpa": 1.0})
    real, normal = prediction.predicted(families(*bare("minilm", FIVE), *bare("normal", backwards(FIVE))), trials)
    assert (real.source, real.variants) == ("minilm", 5)
    assert real.correlations["relative error"] == pytest.approx(1.0)
    assert real.correlations["cosine"] == pytest.approx(1.0)
    assert real.correlations["overlap"] is None  # not recorded
    assert normal.correlations["relative error"] < 0
    assert "| `minilm` | full, fwd, N = 1k | 5 | 1.00 | 1.00 | – |" in prediction.section([real])


def test_fewer_than_five_say_nothing():
    told = prediction.predicted(families(*bare("minilm", ERRORS)), dropped(dict.fromkeys(ERRORS, 0.5)))
    assert prediction.section(told).startswith("Not told: 4 approximations were measured both ways")
    assert prediction.section(prediction.predicted([], dropped(ERRORS))) == ""


def test_the_length_nearest_to_that_of_the_drop_in_counts():
    found = families(*bare("minilm", FIVE, length=256), *bare("minilm", FIVE, length=4096))
    (one,) = prediction.predicted(found, dropped(dict.fromkeys(FIVE, 0.5)))
    assert one.place.length == 256


def test_variants_are_matched_by_parameters_or_where_each_side_has_one_set():
    ours = [("topk", '{"k": 32}'), ("topk", '{"k": 64}'), ("bigbird", '{"block": 32}'), ("local", "{}")]
    theirs = [("topk", '{"k": 64}'), ("bigbird", '{"block": 16}'), ("uniform", "{}")]
    pairs, otherwise = prediction.matched(ours, theirs)
    assert pairs == [(ours[1], theirs[0]), (ours[2], theirs[1])]
    assert otherwise == ["bigbird"]


# --- published ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", published.PUBLISHED, ids=lambda one: one.model)
def test_published_averages_are_those_of_the_tasks(one):
    assert len(one.accuracies) == len(published.TASKS)
    assert statistics.mean(one.accuracies) == pytest.approx(one.average, abs=0.006)
    assert len(one.steps_per_second) == len(one.gigabytes) in (0, len(published.LENGTHS))


def test_published_figures_stand_beside_ours():
    records = bare("minilm", ERRORS, length=512) + bare("minilm", ERRORS)
    gathered = cells.gather(records)
    trials = [made.record(name, made.trained(accuracy), task="recall") for name, accuracy in
              [("naive_sdpa", 1.0), ("bigbird", 0.78)]]  # fmt: skip
    told = published.section(published.ours(gathered, sources.families(gathered), trials))
    assert "| average | here: error on minilm | here: recall |" in told
    assert "| 55.01 | 0.20 (`bigbird`) | 0.780 (`bigbird`) |" in told
    assert "| Transformer | 8.1 / 4.9 / 2.3 / 1.4 | 1.26 | 0.00 [0.00, 0.00] (`naive_sdpa`) |" in told
    assert "does not survive re-implementation" in told
    assert "2011.04006" in told


def test_without_ours_the_published_stand_alone():
    told = published.section(published.ours({}, [], []))
    assert "| model | ListOps | Text | Retrieval | Image | Path | average |\n" in told


def test_an_exponent_is_the_slope_over_published_lengths():
    assert published.exponent([length**1.5 for length in published.LENGTHS]) == pytest.approx(1.5)
