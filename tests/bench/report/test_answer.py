from __future__ import annotations

import pytest

from bench import cells
from bench.record import Failed, OutOfMemory, Unsupported
from bench.report import gaps, headlines, tables
from bench.report.answer import answers, stretches
from tests.bench import runs


def only(*records):
    ((_, found),) = cells.gather(records).items()
    return found


def timed(variant, milliseconds, length=1024, **more):
    return runs.record(variant, runs.measured([milliseconds * 1e-3] * 8, **more), length=length)


def told(*records):
    found = only(*records)
    return headlines.headline(answers(found), tables.speedups(found, "naive_sdpa"), "naive_sdpa")


# --- picks ----------------------------------------------------------------------------------------------------


def test_the_fastest_of_each_kind_wins():
    (answer,) = answers(
        only(timed("naive_sdpa", 9), timed("flex", 3), timed("linformer", 2, relative_error=0.7), timed("bigbird", 4))
    )
    assert answer.exact.cell.contender.label == "flex"
    assert answer.approximate.cell.contender.label == "linformer"
    assert answer.gain.value == 1.5
    assert answer.approximation_pays


def test_what_cannot_be_told_apart_is_named():
    (answer,) = answers(only(timed("flex", 3), timed("sdpa_flash", 3.05), timed("naive_sdpa", 9)))
    assert [cell.contender.label for cell in answer.exact.rivals] == ["sdpa_flash"]


def test_the_floor_is_never_recommended_but_measured_against():
    (answer,) = answers(
        only(timed("flex", 3), timed("uniform", 0.1, relative_error=0.8), timed("linformer", 1, relative_error=0.9))
    )
    assert answer.approximate.cell.contender.label == "linformer"
    assert answer.floor == 0.8
    assert answer.no_better_than_floor


def test_an_approximation_within_noise_of_exact_does_not_pay():
    (answer,) = answers(only(timed("flex", 3), timed("linformer", 2.95, relative_error=0.5)))
    assert answer.approximate is not None
    assert not answer.approximation_pays


def test_nothing_measured_has_no_answer():
    (answer,) = answers(only(runs.record("flex", Unsupported(reasons=["no"]))))
    assert (answer.exact, answer.approximate, answer.gain) == (None, None, None)


# --- sentences ------------------------------------------------------------------------------------------------


def test_lengths_with_the_same_winner_are_one_stretch():
    found = only(
        timed("flex", 1, 256), timed("flex", 2, 512), timed("flex", 9, 1024),
        timed("sdpa_flash", 3, 256), timed("sdpa_flash", 2.02, 512), timed("sdpa_flash", 3, 1024),
    )  # fmt: skip
    picks = {answer.length: answer.exact for answer in answers(found)}
    assert [(stretch.lengths, [one.label for one in stretch.contenders]) for stretch in stretches(picks)] == [
        ([256, 512], ["flex"]),
        ([1024], ["sdpa_flash"]),
    ]


def test_the_headline_names_who_wins_where_and_what_it_gains():
    sentence = told(
        timed("naive_sdpa", 4, 256), timed("naive_sdpa", 64, 1024),
        timed("sdpa_flash", 1, 256), timed("sdpa_flash", 16, 1024),
        timed("linformer", 2, 256, relative_error=0.74), timed("linformer", 8, 1024, relative_error=0.74),
    )  # fmt: skip
    assert sentence == (
        "exact: `sdpa_flash` at every length (at 1k: 16.0 ms, 4.0× the speed of `naive_sdpa`); "
        "approximate: `linformer` at 1k (at 1k: 2.0× faster than exact, relative error 0.74)."
    )


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([timed("linformer", 1)], "no exact attention was measured; approximate: `linformer` at 1k (at 1k: relative"),
        ([timed("flex", 1)], "no approximate attention was measured."),
        ([timed("flex", 1), timed("linformer", 2)], "no approximate one is faster at these lengths."),
        ([timed("flex", 1), timed("sdpa_flash", 1.01)], "exact: `flex` or `sdpa_flash` at 1k"),
        (
            [timed("flex", 2), timed("linformer", 1, fidelity=None)],
            "2.0× faster than exact, fidelity not measured",
        ),
        (
            [timed("flex", 2), timed("linformer", 1, relative_error=1.4), timed("uniform", 0.1, relative_error=0.8)],
            "relative error 1.4, no closer than the plain mean of the values",
        ),
        ([timed("naive_sdpa", 1)], "exact: `naive_sdpa` at 1k (at 1k: 1.00 ms);"),
    ],
)
def test_headlines(records, words):
    assert words in told(*records)


@pytest.mark.parametrize(
    ("winners", "words"),
    [
        ("aabb", "`flex` up to 512, `sdpa_flash` from 1k on"),
        ("abaa", "`flex` at 256, `sdpa_flash` at 512, `flex` from 1k on"),
        ("abba", "`flex` at 256, `sdpa_flash` at 512 and 1k, `flex` at 2k"),
    ],
)
def test_stretches_are_told_as_people_would(winners, words):
    records = [
        timed(variant, 1 if letter == winner else 2, 256 * 2**power)
        for power, winner in enumerate(winners)
        for letter, variant in (("a", "flex"), ("b", "sdpa_flash"))
    ]
    assert words in told(*records)


# --- gaps -----------------------------------------------------------------------------------------------------


def test_reasons_are_grouped_over_cells_and_numbers():
    found = gaps.gaps(
        only(
            *(
                runs.record("bigbird", Unsupported(reasons=[f"length {n} is no multiple of 64"]), length=n)
                for n in (100, 200)
            ),
            runs.record("flex", Unsupported(reasons=["no backward on a CPU"]), mode="bwd"),
            runs.record("flex_bigbird", Unsupported(reasons=["no backward on a CPU"]), mode="bwd"),
            runs.record("flex_bigbird", Unsupported(reasons=["no backward on a CPU"]), mode="fwd_bwd"),
        )
    )
    assert [(gap.reason, len(gap.cells), gap.alike) for gap in found] == [
        ("no backward on a CPU", 3, 1),
        ("length 100 is no multiple of 64", 2, 2),
    ]
    assert [contender.label for contender in found[0].contenders] == ["flex", "flex_bigbird"]


def test_mistakes_come_before_limits():
    assert [gap.status for gap in gaps.gaps(only(*runs.odd()))] == [
        "incorrect", "fell_back", "failed", "crashed", "timeout", "out_of_memory", "unsupported", "unsupported",
    ]  # fmt: skip


def test_what_other_processes_measured_is_told():
    (gap,) = gaps.gaps(only(runs.record(), runs.record(outcome=OutOfMemory(stage="time", message="full"), process=1)))
    assert gap.in_some_processes == 1


def test_the_same_failure_in_every_process_is_one_cell():
    failed = Failed(stage="build", message="broke")
    (gap,) = gaps.gaps(only(*(runs.record(outcome=failed, process=process) for process in range(3))))
    assert len(gap.cells) == 1
    assert gap.in_some_processes == 0
