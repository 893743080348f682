from __future__ import annotations

import io

import msgspec
import numpy as np
import pandas as pd
import pytest

from bench import cells, stats
from bench.errors import WrongUsageError
from bench.record import Failed, FellBack, Measured, Source, Timeout, Unsupported
from bench.report import tables, titles
from tests.bench import runs


def gathered(*records):
    return cells.gather(records)


def only(*records):
    ((_, found),) = cells.gather(records).items()
    return found


def test_one_head_is_no_plural():
    (ground,) = gathered(runs.record(heads=1, kv_heads=1))
    assert "1 head of 64" in titles.plain_title(ground)


# --- grounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"host": runs.GPU},
        {"settings": msgspec.structs.replace(runs.SETTINGS, threads=1)},
        {"settings": msgspec.structs.replace(runs.SETTINGS, time_budget_seconds=9.0)},
        {"source": msgspec.structs.replace(runs.SOURCE, git="f" * 40)},
        {"source": msgspec.structs.replace(runs.SOURCE, versions={"torch": "2.14"})},
        {"dtype": "bfloat16"},
        {"batch": 2},
        {"kv_heads": 2},
        {"head_dim": 80},
        {"scale": 0.5},
        {"inputs": "minilm"},
        {"seed": 1},
    ],
    ids=str,
)
def test_what_differs_in_anything_but_variant_mask_mode_and_length_is_kept_apart(other):
    found = gathered(runs.record("naive_sdpa"), runs.record("sdpa_flash", **other))
    assert [len(members) for members in found.values()] == [1, 1]
    for members in found.values():
        assert tables.speedups(members, "naive_sdpa").keys() <= {
            cell for cell in members if cell.contender.label == "naive_sdpa"
        }


def test_grounds_of_real_inputs_come_first_and_seeds_in_order():
    found = gathered(*(runs.record(inputs=inputs, seed=seed) for inputs, seed in [
        ("normal", 0), ("matched@x", 0), ("matched:1", 0), ("minilm", 1), ("file:mine", 0), ("minilm", 0),
    ]))  # fmt: skip
    assert [(ground.inputs, ground.seed) for ground in found] == [
        ("file:mine", 0), ("minilm", 0), ("matched@x", 0), ("matched:1", 0), ("normal", 0), ("minilm", 1),
    ]  # fmt: skip


def test_variants_masks_modes_and_lengths_share_a_ground():
    found = only(
        runs.record("naive_sdpa"),
        runs.record("sdpa_flash", length=2048),
        runs.record("sdpa_flash", mask="causal", mode="bwd"),
    )
    assert [(cell.contender.label, cell.mask, cell.mode, cell.length) for cell in found] == [
        ("naive_sdpa", "full", "fwd", 1024),
        ("sdpa_flash", "full", "fwd", 2048),
        ("sdpa_flash", "causal", "bwd", 1024),
    ]


def test_two_runs_of_one_clean_revision_are_more_processes_of_it():
    (cell,) = only(
        *(runs.record(outcome=runs.measured([middle] * 8), run_id=f"{middle}") for middle in (1.0, 2.0, 3.0))
    )
    assert len(cell.samples) == 3
    assert cell.seconds.value == 2.0


def test_two_runs_with_uncommitted_changes_are_not():
    dirty = msgspec.structs.replace(runs.SOURCE, dirty=True)
    assert len(gathered(runs.record(run_id="a", source=dirty), runs.record(run_id="b", source=dirty))) == 2
    assert len(gathered(runs.record(run_id="a", source=dirty), runs.record("flex", run_id="a", source=dirty))) == 1


@pytest.mark.parametrize(
    ("shapes", "fixed", "lengths"),
    [
        ([(256, 256), (512, 512)], (None, None), [256, 512]),
        ([(1, 1024), (1, 4096)], (1, None), [1024, 4096]),
        ([(256, 1024), (512, 1024), (1024, 1024)], (None, 1024), [256, 512, 1024]),
    ],
)
def test_one_length_varies(shapes, fixed, lengths):
    found = gathered(*(runs.record(query_length=queries, key_length=keys) for queries, keys in shapes))
    ((ground, members),) = found.items()
    assert (ground.queries, ground.keys) == fixed
    assert [cell.length for cell in members] == lengths


def test_squares_and_others_are_kept_apart():
    shapes = [(256, 256), (512, 512), (1, 256), (1, 512)]
    found = gathered(*(runs.record(query_length=queries, key_length=keys) for queries, keys in shapes))
    assert [(ground.queries, [cell.length for cell in members]) for ground, members in found.items()] == [
        (None, [256, 512]),
        (1, [256, 512]),
    ]


# --- contenders -----------------------------------------------------------------------------------------------


def test_parameters_are_named_only_where_they_differ():
    sets = [{"rank": 128, "projection": "pool"}, {"rank": 64, "projection": "pool"}]
    found = only(
        *(runs.record("linformer", parameters=one) for one in sets), runs.record("bigbird", parameters={"block": 64})
    )
    assert [cell.contender.label for cell in found] == ["bigbird", "linformer (rank=64)", "linformer (rank=128)"]
    assert [cell.contender.sibling for cell in found] == [0, 0, 1]
    assert '"block": 64' in found[0].contender.parameters


def test_exact_ones_come_first_and_the_floor_last():
    names = ["uniform", "reformer_lsh", "bigbird", "sdpa_flash", "linformer", "chunked_mha"]
    found = only(*map(runs.record, names))
    assert [cell.contender.label for cell in found] == [
        "chunked_mha", "sdpa_flash", "bigbird", "linformer", "reformer_lsh", "uniform",
    ]  # fmt: skip


# --- cells ----------------------------------------------------------------------------------------------------


def test_the_median_over_processes_of_their_medians():
    (cell,) = only(
        *(runs.record(outcome=runs.measured(seconds), process=process)
          for process, seconds in enumerate([[1.0, 9.0, 1.0], [2.0, 2.0], [50.0, 3.0, 3.0]]))
    )  # fmt: skip
    assert cell.seconds.value == 2.0


@pytest.mark.parametrize(
    "outcome",
    [Timeout(stage="time", message="late"), FellBack(stage="check", message="other"), Unsupported(reasons=["no"])],
)
def test_a_process_that_did_not_measure_takes_the_figures_away(outcome):
    (cell,) = only(runs.record(), runs.record(outcome=outcome, process=1))
    assert cell.status == type(outcome).__struct_config__.tag
    assert cell.seconds is None
    assert cell.peak_bytes is None
    assert cell.reasons()[0][0] == cell.status


def test_the_severest_status_counts():
    (cell,) = only(
        runs.record(outcome=Unsupported(reasons=["no"])),
        runs.record(outcome=Failed(stage="build", message="broke"), process=1),
    )
    assert cell.status == "failed"
    assert len(cell.reasons()) == 2


def test_over_processes_memory_and_errors_are_the_worst():
    (cell,) = only(
        runs.record(outcome=runs.measured(peak_mib=1, relative_error=0.2)),
        runs.record(outcome=runs.measured(peak_mib=2, relative_error=0.1), process=1),
    )
    assert cell.peak_bytes == 2 * 2**20
    assert cell.relative_error == 0.2
    assert cell.cosine == pytest.approx(0.98)


def test_checked_but_not_timed_has_no_time():
    (cell,) = only(runs.record(outcome=runs.measured([], peak_mib=None)))
    assert cell.status == "measured"
    assert cell.seconds is None
    assert tables.scalings([cell]) == []


# --- speed-up -------------------------------------------------------------------------------------------------


def test_speedups_are_over_the_same_workload():
    found = only(
        runs.record("naive_sdpa", runs.measured([8.0] * 8)),
        runs.record("naive_sdpa", runs.measured([80.0] * 8), length=2048),
        runs.record("naive_sdpa", runs.measured([6.0] * 8), mask="causal"),
        runs.record("flex", runs.measured([2.0] * 8)),
        runs.record("flex", runs.measured([2.0] * 8), mask="causal"),
        runs.record("flex", runs.measured([2.0] * 8), mode="bwd"),
    )
    faster = {(cell.mask, cell.mode): value.value for cell, value in tables.speedups(found, "naive_sdpa").items()
              if cell.contender.label == "flex"}  # fmt: skip
    assert faster == {("full", "fwd"): 4.0, ("causal", "fwd"): 3.0}


def test_the_default_baseline_is_naive_sdpa_if_it_is_there():
    some = [cell.contender for cell in only(runs.record("naive_sdpa"), runs.record("flex"))]
    assert tables.baseline(some) == "naive_sdpa"
    assert tables.baseline(some[:1]) is None
    assert tables.baseline(some, "flex") == "flex"


def test_an_unknown_baseline_is_answered_with_the_nearest():
    contenders = [cell.contender for cell in only(runs.record("naive_sdpa"), runs.record("sdpa_flash"))]
    with pytest.raises(WrongUsageError, match=r"got 'sdpa_flush': did you mean 'sdpa_flash'\?"):
        tables.baseline(contenders, "sdpa_flush")
    with pytest.raises(WrongUsageError, match="give one of naive_sdpa; sdpa_flash"):
        tables.baseline(contenders, "zzz")


def test_a_baseline_with_several_sets_of_parameters_must_be_named_whole():
    contenders = [
        cell.contender for cell in only(*(runs.record("linformer", parameters={"rank": rank}) for rank in (64, 128)))
    ]
    with pytest.raises(WrongUsageError, match=r"is several: give one of linformer \(rank=64\); linformer \(rank=128\)"):
        tables.baseline(contenders, "linformer")
    assert tables.baseline(contenders, "linformer (rank=64)") == "linformer (rank=64)"


# --- growth ---------------------------------------------------------------------------------------------------


def grown(power, lengths=(256, 512, 1024, 2048), bend=0.0):
    return stats.growth({n: stats.Samples({0: [n**power + bend * n**2] * 8}) for n in lengths})


def test_claims_are_judged_by_the_fit_and_by_its_end():
    assert tables.verdict(grown(1.0), 1.0) == "holds"
    assert tables.verdict(grown(0.5), 1.0) == "holds"
    assert tables.verdict(grown(2.0), 1.0) == "does not hold here"
    assert tables.verdict(grown(1.0, bend=1e-4), 1.0) == "open"
    assert tables.verdict(grown(1.0, lengths=(256, 2048)), 1.0) == "too few lengths"
    assert tables.verdict(grown(1.0, lengths=(256, 384, 512)), 1.0) == "too few lengths"
    assert tables.verdict(grown(1.0), None) == ""
    assert tables.verdict(None, 1.0) == ""


def test_time_and_memory_of_the_example_grow_as_it_was_made():
    found = {
        scaling.contender.label: scaling
        for scaling in tables.scalings(only(*runs.sweep(masks=("full",), modes=("fwd",))))
    }
    assert found["naive_sdpa"].memory.exponent.value == pytest.approx(2, abs=0.01)
    assert found["linformer"].time.exponent.value == pytest.approx(1, abs=0.03)
    assert found["linformer"].time.exponent.low <= 1.0 <= found["linformer"].time.exponent.high + 0.03
    assert "xformers" not in found


# --- frames ---------------------------------------------------------------------------------------------------


def test_the_frame_of_cells_holds_what_is_known_and_nothing_else():
    frame = tables.cells_frame(gathered(*runs.odd()), "naive_sdpa").set_index("variant")
    assert len(frame) == len(runs.odd())
    assert frame.loc["sdpa_flash", "seconds"] == 0.01
    assert frame.loc["sdpa_flash", "speedup"] == pytest.approx(2.1)
    assert np.isnan(frame.loc["flex", "seconds"])
    assert frame.loc["flex", "reason"].startswith("expected nothing like")
    assert frame.loc["xformers", "reason"] == "xformers needs CUDA; it is not installed"


def test_speedups_of_the_frame_never_cross_grounds():
    frame = tables.cells_frame(gathered(runs.record("naive_sdpa"), runs.record("flex", host=runs.GPU)), "naive_sdpa")
    assert list(frame["ground"]) == [1, 2]
    assert frame.set_index("variant")["speedup"].isna().to_dict() == {"naive_sdpa": False, "flex": True}


def test_csv_keeps_bytes_to_the_last_digit_and_numbers_readable():
    many = 2**41 + 1
    frame = tables.cells_frame(gathered(runs.record(outcome=runs.measured(peak_mib=None, peak_bytes=many)),
                                        runs.record("flex", Unsupported(reasons=["no"]))))  # fmt: skip
    back = pd.read_csv(io.BytesIO(tables.as_csv(frame)), dtype={"peak_bytes": "Int64"})
    assert back.set_index("variant")["peak_bytes"]["naive_sdpa"] == many
    assert b"\r" not in tables.as_csv(frame)


def test_the_frame_of_records_has_a_row_a_line():
    records = [*runs.sweep(("naive_sdpa", "xformers"), processes=2), *runs.odd()]
    frame = tables.records_frame(records)
    assert len(frame) == len(records)
    first = records[0].outcome
    assert isinstance(first, Measured)
    assert frame["seconds"][0] == pytest.approx(np.median(first.seconds))
    assert frame["condition_load_1min"][0] == 0.42
    assert frame["dispatched"][0] == "aten::naive_sdpa"
    assert set(frame["status"]) == {*(record.status for record in records)}


def test_sources_without_git_are_told_apart_by_versions():
    installed = Source(git=None, dirty=None, versions={"attention-bench": "0.1.0"})
    newer = Source(git=None, dirty=None, versions={"attention-bench": "0.2.0"})
    assert len(gathered(runs.record(source=installed), runs.record("flex", source=installed, run_id="b"))) == 1
    assert len(gathered(runs.record(source=installed), runs.record("flex", source=newer))) == 2
