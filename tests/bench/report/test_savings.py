from __future__ import annotations

from bench import cells
from bench.report import front, savings, sections
from tests.bench import runs


def timed(variant, milliseconds, *, peak_mib=1.0, error=1e-7, length=1024, mask="full"):
    outcome = runs.measured([milliseconds * 1e-3] * 8, peak_mib=peak_mib, relative_error=error)
    return runs.record(variant, outcome, length=length, mask=mask)


def only(*records):
    ((_, found),) = cells.gather(records).items()
    return found


def found(*records):
    return savings.savings(only(*records))


EXACT = [timed("naive_sdpa", 20, peak_mib=4), timed("sdpa_flash", 10, peak_mib=8)]


def test_time_is_over_the_fastest_and_memory_over_the_leanest_exact_one():
    (one,) = found(*EXACT, timed("linformer", 2, peak_mib=2, error=0.3))
    assert (one.time.value, one.memory, one.beaten_by) == (5.0, 2.0, None)
    table = savings.table([one], {one.cell: 0.25})
    assert table.splitlines()[-1] == "| ≈ `linformer` | 5.0× [5.0, 5.0] | 2.0× | 0.95 | 0.30 | 0.25 |  |"
    assert savings.title([one]) == "What each approximation saves and keeps: full, fwd, N = 1k"


def test_a_cosine_that_is_nearly_one_is_the_same_in_every_table():
    (one,) = found(*EXACT, timed("linformer", 2, error=0.1))
    assert " 0.9950 " in savings.table([one], {})
    assert "cos 0.9950 " in sections.fidelities([one.cell])


def test_what_something_beats_says_by_whom_and_comes_after_what_nothing_beats():
    told = found(
        *EXACT,
        timed("performer", 1, peak_mib=2, error=0.9),
        timed("linformer", 2, peak_mib=2, error=0.3),
        timed("bigbird", 3, peak_mib=1, error=0.3),  # slower than linformer, but leaner
        timed("reformer_lsh", 4, peak_mib=2, error=0.5),
        timed("local", 11, peak_mib=9, error=0.2),  # exact attention is cheaper
        timed("uniform", 0.1, peak_mib=0.1, error=0.1),  # the floor beats nobody
    )
    beaten = {one.cell.contender.label: one.beaten_by and one.beaten_by.contender.label for one in told}
    assert beaten == {
        "performer": None, "linformer": None, "bigbird": None, "local": "sdpa_flash", "reformer_lsh": "linformer",
        "uniform": None,
    }  # fmt: skip
    assert [one.cell.contender.label for one in told] == [
        "performer", "linformer", "bigbird", "reformer_lsh", "local", "uniform",
    ]  # fmt: skip


def test_without_an_exact_one_nothing_is_saved_and_without_a_peak_no_memory():
    assert found(timed("linformer", 2, error=0.3)) == []
    (one,) = found(timed("naive_sdpa", 20, peak_mib=None), timed("linformer", 2, error=0.3))
    assert one.memory is None


def test_a_cosine_near_one_has_more_digits():
    assert [savings.kept(cosine) for cosine in (None, 0.5, 0.9899, 0.9953)] == ["–", "0.50", "0.99", "0.9953"]


# --- fronts -------------------------------------------------------------------------------------------------------


def test_the_front_of_memory_is_at_the_length_of_the_front_of_speed():
    members = only(
        *EXACT, timed("linformer", 2, peak_mib=2, error=0.3), timed("bigbird", 3, peak_mib=2, error=0.2),
        timed("linformer", 4, peak_mib=1, error=0.3, length=2048),
    )  # fmt: skip
    speed, memory = front.front(members), front.front(members, front.MEMORY, source="minilm")
    assert memory.title == f"minilm · {speed.title}" == "minilm · full, fwd, N = 1k"
    gains = {cell.contender.label: gain for cell, (_, gain) in memory.points.items()}
    assert gains == {"naive_sdpa": 1.0, "sdpa_flash": 0.5, "linformer": 2.0, "bigbird": 2.0}
    assert [cell.contender.label for cell in memory.best] == ["naive_sdpa", "bigbird"]  # as lean, and closer
    assert [cell.contender.label for cell in speed.best] == ["sdpa_flash", "bigbird", "linformer"]


def test_there_is_no_front_of_memory_that_was_not_measured():
    assert front.front(only(timed("linformer", 2, peak_mib=None, error=0.3)), front.MEMORY) is None
