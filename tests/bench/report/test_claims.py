from __future__ import annotations

import msgspec
import numpy as np
import pytest

from bench import cells, stats
from bench.record import About
from bench.report import claims, crossovers, sidebyside, tables
from tests.bench import runs
from variants._contract import Claim

LENGTHS = (256, 512, 1024, 2048)


def only(*records):
    ((_, found),) = cells.gather(records).items()
    return found


def timed(variant, seconds, length=1024, *, spread=0.0, about=None, parameters=None, mode="fwd", **more):
    outcome = runs.measured([seconds * (1 + spread * (n - 4) / 4) for n in range(9)], **more)
    return runs.record(variant, outcome, length=length, about=about, parameters=parameters, mode=mode)


def judged(*records):
    found = only(*records)
    grown = {}
    for cell in found:
        grown.setdefault((cell.mask, cell.mode), []).append(cell)
    grown = {workload: tables.scalings(members) for workload, members in grown.items()}
    return {one.statement: one for one in claims.judged(found, grown) if one.contender.variant != "naive_sdpa"}


def claiming(metric, value, **more):
    claim = Claim(statement="it is so", metric=metric, value=value, source="a paper", **more)
    return About(family="exact", exact=True, claims=[claim])


# --- claims ---------------------------------------------------------------------------------------------------


def test_exponents_are_claims_too():
    found = judged(*(timed("linformer", 1e-6 * n**2, n, peak_mib=n / 64) for n in LENGTHS))
    assert found["time grows as N"].verdict == "does not hold here"
    assert found["memory grows as N"].verdict == "holds"
    assert found["time grows as N"].found == [("N^2.00 (full, fwd)", "does not hold here")]
    assert judged(timed("linformer", 1))["time grows as N"].verdict == "not measurable here"


@pytest.mark.parametrize(
    ("seconds", "spread", "verdict"),
    [(1.0, 0.01, "holds"), (4.0, 0.01, "does not hold here"), (2.0, 0.2, "open")],
)
def test_a_speedup_is_held_against_its_interval(seconds, spread, verdict):
    about = claiming("speedup", 2, over="naive_sdpa")
    found = judged(timed("naive_sdpa", 4.0, spread=spread), timed("flex", seconds, spread=spread, about=about))
    assert found["it is so"].verdict == verdict


def test_a_speedup_is_looked_for_where_it_is_claimed():
    about = claiming("speedup", 2, over="naive_sdpa", mode="bwd", min_length=1024)
    records = [
        timed("naive_sdpa", 4.0, 512, mode="bwd"), timed("flex", 1.0, 512, mode="bwd", about=about),
        timed("naive_sdpa", 4.0), timed("flex", 1.0, about=about),
    ]  # fmt: skip
    one = judged(*records)["it is so"]
    assert one.verdict == "not measurable here"
    assert one.why_not == "not measured beside naive_sdpa in bwd from 1k on"
    records += [timed("naive_sdpa", 4.0, mode="bwd"), timed("flex", 1.0, mode="bwd", about=about)]
    assert judged(*records)["it is so"].found == [("4.0× [4.0, 4.0] (full, bwd, 1k)", "holds")]


def test_memory_saved():
    about = claiming("memory_saving", 10, over="naive_sdpa")
    for mebibytes, verdict in ((2, "holds"), (8, "does not hold here")):
        found = judged(timed("naive_sdpa", 1, peak_mib=64), timed("flex", 1, peak_mib=mebibytes, about=about))
        assert found["it is so"].verdict == verdict


@pytest.mark.parametrize(("power", "verdict"), [(-0.5, "holds"), (-0.2, "does not hold here")])
def test_an_error_falls_with_its_parameter(power, verdict):
    about = msgspec.structs.replace(claiming("error_exponent", -0.5, parameter="features"), exact=False)
    records = [
        timed("performer", 1, relative_error=count**power, about=about, parameters={"features": count})
        for count in (64, 128, 256)
    ]
    assert judged(*records)["it is so"].verdict == verdict
    assert judged(*records[:2])["it is so"].verdict == "not measurable here"


def test_what_does_not_hold_comes_first_and_all_are_counted():
    found = list(judged(*(timed("linformer", 1e-6 * n**2, n, peak_mib=n / 64) for n in LENGTHS)).values())
    table = claims.table(found)
    assert table.index("**does not hold here**") < table.index("| holds |")
    assert claims.summary(found) == "Of 2 claims 1 holds and 1 does not hold here."


# --- crossovers -----------------------------------------------------------------------------------------------


def series(seconds, lengths=LENGTHS, spread=0.02, seed=0):
    random = np.random.default_rng(seed)
    return {
        length: stats.Samples({0: seconds(length) * np.exp(spread * random.standard_normal(15))}) for length in lengths
    }


def test_a_crossing_is_found_between_lengths_with_an_interval_that_holds_it():
    held = 0
    for seed in range(60):
        place = stats.crossing(
            series(lambda n: 1e-6 * n * 700, seed=seed), series(lambda n: 1e-6 * n**2, seed=seed + 1000)
        )
        assert place.length == pytest.approx(700, rel=0.1)
        assert not place.extrapolated
        held += place.low <= 700 <= place.high
    assert held / 60 >= 0.9


def test_a_crossing_beyond_is_extrapolated_and_not_too_far():
    quadratic = series(lambda n: 1e-6 * n**2, spread=0.001)
    place = stats.crossing(series(lambda n: 1e-6 * n * 5000, spread=0.001, seed=1), quadratic)
    assert place.extrapolated
    assert place.length == pytest.approx(5000, rel=0.05)
    assert stats.crossing(series(lambda n: 1e-6 * n * 10**6, seed=1), quadratic) is None


def test_no_crossing_where_one_is_always_faster_or_has_one_length():
    slow, fast = series(lambda n: 2e-6 * n), series(lambda n: 1e-6 * n, seed=1)
    assert stats.crossing(fast, slow) is None
    assert stats.crossing(slow, fast) is None
    assert stats.crossing({256: slow[256]}, fast) is None


def test_crossings_are_told_as_people_would():
    linear, quadratic = series(lambda n: 7e-4 * n, spread=1e-4), series(lambda n: 1e-6 * n**2, spread=1e-4, seed=1)
    assert crossovers.told(linear, quadratic) == "from 700 [700, 700] on"
    assert crossovers.told(quadratic, linear) == "up to 700 [700, 700]"
    assert crossovers.told(series(lambda n: 1e-9 * n), quadratic) == "at every length"
    assert crossovers.told(series(lambda n: 1.0 * n**2), quadratic) == "at no length"
    assert crossovers.told(linear, linear) == "within noise at the longest"
    far = crossovers.told(series(lambda n: 5e-3 * n, spread=1e-4, seed=3), quadratic)
    assert far.startswith("from 4.9k [4.9k, 4.9k] on, *extrapolated*")


def test_crossovers_are_against_the_fastest_exact_and_the_baseline():
    found = only(
        *(timed("naive_sdpa", 4e-6 * n**2, n) for n in LENGTHS), *(timed("flex", 1e-6 * n**2, n) for n in LENGTHS),
        *(timed("linformer", 7e-4 * n, n, relative_error=0.7) for n in LENGTHS),
    )  # fmt: skip
    lines = crossovers.table(found, "naive_sdpa").splitlines()
    assert lines[0] == "| faster than | `flex` | `naive_sdpa` |"
    assert lines[2:] == [
        "| `flex` |  | at every length |",
        "| `naive_sdpa` | at no length |  |",
        "| ≈ `linformer` | from 700 [700, 700] on | at every length |",
    ]


# --- side by side ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"host": runs.GPU}, "cannot be compared**: another machine. "),
        ({"host": runs.GPU, "dtype": "bfloat16"}, "cannot be compared**: another machine, another dtype"),
        ({"dtype": "bfloat16"}, "a difference is what dtype costs"),
        ({"settings": msgspec.structs.replace(runs.SETTINGS, threads=1)}, "a difference is what threads costs"),
        (
            {"source": msgspec.structs.replace(runs.SOURCE, versions={**runs.SOURCE.versions, "torch": "2.14"})},
            "a difference beyond noise is due to version of torch",
        ),
        (
            {"dtype": "bfloat16", "source": msgspec.structs.replace(runs.SOURCE, git="f" * 40)},
            "cannot be compared**: dtype differ, and so does the code",
        ),
    ],
    ids=str,
)
def test_what_may_be_compared_is_said(other, words):
    text = sidebyside.section(cells.gather([runs.record("flex"), runs.record("flex", **other)]))
    assert words in text
    assert "| `flex` | 1.00 ms ±0% | 1.00 ms ±0% |" in text


def test_one_ground_needs_no_comparison():
    assert sidebyside.section(cells.gather([runs.record("flex")])) == ""
