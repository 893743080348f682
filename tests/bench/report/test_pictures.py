from __future__ import annotations

import re
from itertools import combinations

import msgspec
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection

from bench import cells, store
from bench.record import OutOfMemory
from bench.report import (
    attention_maps,
    breakdowns,
    canvas,
    colours,
    front,
    gallery,
    heatmap,
    roofline,
    strips,
    tables,
)
from tests.bench import runs

MAP = ["z" * 12 + "0" * 12] * 24


def only(*records):
    ((_, found),) = cells.gather(records).items()
    return found


def timed(variant, milliseconds, length=1024, *, mask="full", mode="fwd", parameters=None, **more):
    outcome = runs.measured([milliseconds * 1e-3] * 8, **more)
    return runs.record(variant, outcome, length=length, mask=mask, mode=mode, parameters=parameters)


@pytest.fixture(scope="module")
def example():
    """Of the example run, with everything that pictures show."""
    found = []
    for record in store.read(runs.FOLDER / "cpu.jsonl").records:
        outcome = record.outcome
        if record.status == "measured":
            changes = {"output_bytes": 2**20, "saved_bytes": 2**18, "workspace_bytes": 2**22, "attention_map": MAP}
            outcome = type(outcome)(**({name: getattr(outcome, name) for name in outcome.__struct_fields__} | changes))
        found.append(runs.record(record.case.variant, outcome, length=record.case.workload.query_length,
                                 mask=record.case.workload.mask, mode=record.case.workload.mode))  # fmt: skip
    return only(*found)


@pytest.fixture
def drawn(monkeypatch):
    """The figures behind pictures, laid out; nothing is encoded."""
    figures = []

    def laid_out(draw, title):
        with canvas.settings():
            figure = draw()
            FigureCanvasAgg(figure).draw()
        figures.append((title, figure))
        return canvas.Picture(draw, title)

    for module in (heatmap, front, strips, roofline, attention_maps):
        monkeypatch.setattr(module, "Picture", laid_out)
    return figures


def texts(figure):
    inside = [text for axes in figure.axes for text in [*axes.texts, axes._left_title]]
    for axes in figure.axes:
        low, high = axes.get_ylim()
        ticks = axes.yaxis.get_major_ticks() if axes.axison else []
        inside += [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]
    return [text for text in [*figure.texts, *inside] if text.get_text() and text.get_visible()]


def words(figure):
    return [text.get_text() for text in texts(figure)]


# --- all of them ----------------------------------------------------------------------------------------------


def test_no_text_leaves_a_picture_or_covers_another(example, drawn):
    speedups = tables.speedups(example, "naive_sdpa")
    gallery.overview(example, speedups, "naive_sdpa", "")
    gallery.fronts(example, "")
    gallery.machine(example, runs.CPU, "")
    assert len(drawn) == 8
    for title, figure in drawn:
        width, height = figure.get_size_inches() * figure.dpi
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
        for name, box in boxes:
            assert box.x0 >= 0, (title, name)
            assert box.x1 <= width, (title, name)
            assert box.y0 >= 0, (title, name)
            assert box.y1 <= height, (title, name)
        touching = [(one[0], other[0]) for one, other in combinations(boxes, 2) if one[1].overlaps(other[1])]
        assert not touching, (title, *touching)


def test_a_dark_picture_is_the_light_one_in_other_colours(example):
    file, memory = gallery.fronts(example, "")
    assert (file.name, memory.name) == ("front", "front-memory")
    assert memory.picture.svg != file.picture.svg
    light, dark = file.picture.svg, file.picture.dark_svg
    assert len(light) == len(dark)
    assert b"fill: #ffffff" in light
    assert b"#ffffff" not in dark
    assert b"fill: #0d1117" in dark
    assert re.sub(rb"#[0-9a-f]{6}", b"", light) == re.sub(rb"#[0-9a-f]{6}", b"", dark)


def test_every_colour_has_a_twin_and_no_two_the_same():
    assert len(set(colours._TWINS.values())) == len(colours._TWINS)
    with pytest.raises(KeyError):
        colours.dark(b'style="fill: #123456"')


@pytest.mark.parametrize("twin", [False, True])
def test_words_on_cells_can_be_read(twin):
    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for step in range(-12, 13):
        pair = colours.diverging(step / 12)
        face, ink = (luminance(colours._ALL_TWINS[one] if twin else one) for one in pair)
        assert (max(face, ink) + 0.05) / (min(face, ink) + 0.05) >= 3.4, step


# --- heat map -------------------------------------------------------------------------------------------------


def test_a_heat_map_says_every_number_and_why_there_is_none(drawn):
    found = only(
        timed("naive_sdpa", 8), timed("naive_sdpa", 80, 2048), timed("flex", 4),
        timed("linformer", 80, relative_error=1),
        runs.record("flex", OutOfMemory(stage="time", message="full"), length=2048),
    )  # fmt: skip
    heatmap.draw(found, tables.speedups(found, "naive_sdpa"), "naive_sdpa")
    ((title, figure),) = drawn
    assert title == "How many times as fast as naive_sdpa"
    assert {"2.0", "0.10", "1.0", "oom", "flex", "≈ linformer", "1k", "2k", "full", "fwd"} <= set(words(figure))


def test_without_colour_what_is_slower_is_underlined_and_never_as_deep(drawn):
    found = only(timed("naive_sdpa", 8), timed("flex", 128), timed("sdpa_flash", 0.5), timed("sdpa_math", 8.02))
    heatmap.draw(found, tables.speedups(found, "naive_sdpa"), "naive_sdpa")
    ((_, figure),) = drawn
    (lines,) = [found for found in figure.axes[0].collections if isinstance(found, LineCollection)]
    (line,) = lines.get_segments()
    (number,) = [text for text in figure.axes[0].texts if text.get_text() == "0.06"]
    assert line[:, 0].mean() == pytest.approx(number.get_position()[0])
    assert line[0, 1] < number.get_position()[1]
    assert any("orange, underlined: slower" in text for text in words(figure))

    def grey(colour):
        return sum(share * int(colour[at : at + 2], 16) for share, at in ((0.299, 1), (0.587, 3), (0.114, 5)))

    slow, fast = (colours.diverging(share)[0] for share in (-1, 1))
    assert abs(grey(slow) - grey(fast)) > 60
    assert abs(grey(colours._ALL_TWINS[slow]) - grey(colours._ALL_TWINS[fast])) > 60


def test_many_workloads_are_several_heat_maps(drawn):
    found = only(*(timed("naive_sdpa", 1, 256 * 2**n, mask=f"window:{w}") for n in range(6) for w in range(1, 7)))
    heatmap.draw(found, tables.speedups(found, "naive_sdpa"), "naive_sdpa")
    assert [title[-8:] for title, _ in drawn] == ["(1 of 2)", "(2 of 2)"]


# --- front ----------------------------------------------------------------------------------------------------


def test_the_front_holds_what_nothing_beats():
    found = front.front(only(
        timed("naive_sdpa", 8), timed("sdpa_flash", 4), timed("linformer", 1, relative_error=0.7),
        timed("bigbird", 2, relative_error=0.2), timed("performer", 3, relative_error=0.9),
        timed("local", 9, relative_error=0.1), timed("uniform", 0.1, relative_error=0.8),
    ))  # fmt: skip
    assert [cell.contender.label for cell in found.best] == ["sdpa_flash", "bigbird", "linformer"]
    assert {cell.contender.label: speed for cell, (_, speed) in found.points.items()}["linformer"] == 4
    assert found.floor == 0.8


def test_everything_on_a_front_is_named_and_what_something_beats_is_faint(drawn):
    front.draw([front.front(only(
        timed("naive_sdpa", 8), timed("flex", 6), timed("sdpa_flash", 4), timed("linformer", 1, relative_error=0.7),
        timed("performer", 3, relative_error=0.9),
    ))])  # fmt: skip
    ((_, figure),) = drawn
    inks = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
    assert inks == {
        "sdpa_flash": colours.INK, "linformer": colours.INK,
        "naive_sdpa": colours.FAINT, "flex": colours.FAINT, "performer": colours.FAINT,
    }  # fmt: skip


def test_without_an_exact_one_a_front_says_what_it_is_over():
    approximate = [timed("linformer", 1, relative_error=0.7), timed("bigbird", 16, relative_error=0.2)]
    floor = timed("uniform", 40, relative_error=0.8)
    assert front.front(only(timed("flex", 2), *approximate)).axis == "times as fast as the fastest exact"
    found = front.front(only(*approximate, floor))
    assert found.axis == "times as fast as bigbird"
    assert {cell.contender.label: gain for cell, (_, gain) in found.points.items()} == {"linformer": 16, "bigbird": 1}
    assert front.front(only(*approximate), front.MEMORY).axis.startswith("times as lean as ")
    assert "exact" not in front.front(only(*approximate), front.MEMORY).axis


def test_small_gains_leave_room_for_what_the_axis_says(drawn):
    front.draw([front.front(only(
        timed("sdpa_flash", 1), timed("reformer_pytorch", slowest, relative_error=0.7)
    )) for slowest in (128, 5000)])  # fmt: skip
    ((_, figure),) = drawn
    for axes in figure.axes:
        label = axes.yaxis.label.get_window_extent()
        assert label.x0 >= 0
        assert not [text for text in texts(figure) if text.get_window_extent().overlaps(label)]


def test_the_front_is_where_most_was_measured():
    found = front.front(only(
        timed("flex", 1), timed("linformer", 1, relative_error=0.7), timed("bigbird", 2, relative_error=0.2),
        timed("flex", 1, 4096), timed("linformer", 1, 4096, relative_error=0.7),
    ))  # fmt: skip
    assert found.title == "full, fwd, N = 1k"
    assert front.front(only(timed("flex", 1))) is None


# --- breakdowns -----------------------------------------------------------------------------------------------


def rows_of(monkeypatch, draw, found):
    told = []
    monkeypatch.setattr(strips, "draw", lambda strip, title: told.append((title, strip)))
    draw(found)
    ((title, strip),) = told
    return title, {contender.label: values for contender, values in strip.rows}


def test_setup_is_split_where_compiling_happened(monkeypatch):
    setup = {"setup_seconds": 10.0, "first_call_seconds": 2.0}
    title, rows = rows_of(monkeypatch, breakdowns.phases, only(
        timed("flex", 5, compile_seconds=1.5, **setup), timed("chunked_mha", 5, compile_seconds=7.0, **setup),
        timed("naive_sdpa", 5, **setup), timed("naive_sdpa", 15, mode="fwd_bwd", **setup),
    ))  # fmt: skip
    assert title == "Where the time goes · full, N = 1k"
    assert rows["flex"] == {"forward": 0.005, "building": 8.0, "compiling": 1.5, "first call": 0.5}
    assert rows["chunked_mha"] == {"forward": 0.005, "building": 1.0, "compiling": 7.0, "first call": 2.0}
    assert rows["naive_sdpa"] == {
        "forward": 0.005, "forward and backward": 0.015, "building": 8.0, "first call": 2.0,
    }  # fmt: skip


def test_a_backward_is_timed_or_what_both_take_more(monkeypatch):
    _, rows = rows_of(monkeypatch, breakdowns.passes, only(
        timed("flex", 2), timed("flex", 6, mode="bwd"), timed("flex", 100, mode="fwd_bwd"),
        timed("naive_sdpa", 2), timed("naive_sdpa", 6, mode="fwd_bwd"),
        timed("sdpa_math", 6, mode="bwd"),
    ))  # fmt: skip
    assert {name: values["backward over forward"] for name, values in rows.items()} == pytest.approx(
        {"flex": 3.0, "naive_sdpa": 2.0}
    )


def test_a_line_is_named_on_the_side_that_has_room(drawn):
    for forward in (1.0, 5.0):
        breakdowns.passes(only(
            timed("flex", forward), timed("flex", 8, mode="bwd"),
            timed("naive_sdpa", 4), timed("naive_sdpa", 6, mode="bwd"),
        ))  # fmt: skip
    boxes = [
        (text.get_window_extent(), text.axes.get_window_extent())
        for _, figure in drawn
        for text in texts(figure)
        if "FLOPs" in text.get_text()
    ]
    assert len(boxes) == 2
    assert all(axes.x0 <= words.x0 and words.x1 <= axes.x1 for words, axes in boxes)


def test_memory_is_told_of_training_where_it_was_measured(monkeypatch):
    title, rows = rows_of(monkeypatch, breakdowns.memory, only(
        timed("flex", 2), timed("flex", 6, mode="fwd_bwd", peak_mib=8, saved_bytes=2**21, output_bytes=2**20),
    ))  # fmt: skip
    assert title.endswith("fwd_bwd")
    assert rows["flex"] == {"output": 2.0**20, "saved for backward": 2.0**21, "peak": 2.0**23}


# --- the machine ----------------------------------------------------------------------------------------------


def test_the_roofline_needs_ceilings(drawn):
    found = only(timed("flex", 5, issued_flops=10**9))
    assert roofline.draw(found, runs.GPU) is None
    assert roofline.draw(found, runs.CPU) is not None
    ((_, figure),) = drawn
    (point,) = [line for line in figure.axes[0].lines if line.get_zorder() == 3]
    (x,), (y,) = point.get_data()
    assert x == pytest.approx(10**9 / (4 * 8 * 1024 * 64 * 4))
    assert y == pytest.approx(10**9 / 5e-3)


def test_a_point_above_all_roofs_is_within_the_axes(drawn):
    flops = round(12 * 9.1e10 * 5e-3)
    roofline.draw(only(timed("linformer", 5, relative_error=0.7, issued_flops=flops), timed("flex", 5)), runs.CPU)
    ((_, figure),) = drawn
    (axes,) = figure.axes
    top = axes.get_ylim()[1]
    assert all(value < top for line in axes.lines if line.get_zorder() == 3 for value in line.get_ydata())


def test_ticks_of_a_long_context_are_plain_and_apart(drawn):
    found = only(
        timed("flex", 500, 32768, issued_flops=10**13),
        timed("uniform", 1, 32768, relative_error=0.8, issued_flops=10**7),
    )
    roofline.draw(found, runs.CPU)
    ((_, figure),) = drawn
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    ticks = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert {"0.125", "1", "4k", "32k"} <= {tick.get_text() for tick in ticks}
    boxes = [tick.get_window_extent() for tick in ticks]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


def test_no_point_lies_above_the_roofs_for_want_of_one(drawn):
    """What stays in a cache may be quicker than main memory, and what a variant makes no use of need not move."""
    sizes = {"copy_bytes_per_second:4194304": 9e10, "copy_bytes_per_second:16777216": 4e10}
    host = msgspec.structs.replace(runs.CPU, ceilings=runs.CPU.ceilings | sizes)
    flops, seconds, moved = 2**19, 5e-5, 2 * 8 * 1024 * 64 * 4  # value in, result out
    share = flops / seconds / (9e10 * flops / moved)
    found = only(
        timed(
            "uniform", seconds * 1e3, relative_error=0.8, issued_flops=flops, roofline_fraction=share, bound="memory"
        ),
        timed("flex", 5, issued_flops=10**9),
    )
    roofline.draw(found, host)
    ((_, figure),) = drawn
    at = {
        tuple(line.get_data()[0]) + tuple(line.get_data()[1]) for line in figure.axes[0].lines if line.get_zorder() == 3
    }
    assert (flops / moved, flops / seconds) in at
    assert {"main memory 16 GB/s", "cache 90 GB/s"} <= set(words(figure))
    (roof,) = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    x, y = roof.get_data()
    assert y[0] / x[0] == pytest.approx(9e10)
    assert flops / seconds < 9e10 * flops / moved
    assert flops / seconds > 1.6e10 * flops / moved  # above the roof of main memory


def test_maps_show_one_exact_and_every_approximation(drawn):
    found = only(
        *(timed(name, 1, attention_map=MAP) for name in ("flex", "naive_sdpa", "linformer", "bigbird")),
        timed("local", 1),
    )
    attention_maps.draw(found)
    ((title, figure),) = drawn
    assert title == "Who attends to whom · full, N = 1k, one head"
    assert [axes._left_title.get_text() for axes in figure.axes] == ["exact", "bigbird", "linformer"]
    (stroke,) = figure.axes[0].patches
    assert stroke.get_path().vertices[:2].tolist() == [[0, 0.5], [12, 0.5]]
    assert attention_maps.draw(only(timed("linformer", 1))) is None


def test_a_long_name_above_a_map_is_whole_and_touches_no_other(drawn):
    names = ["transformers_bigbird", "factorized_positional", "a_name_of_26_characters_xy", "linformer", "bigbird"]
    attention_maps.draw(only(*(timed(name, 1, attention_map=MAP, relative_error=0.5) for name in names)))
    ((_, figure),) = drawn
    assert {axes._left_title.get_text() for axes in figure.axes} == set(names)
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    assert not [(one[0], other[0]) for one, other in combinations(boxes, 2) if one[1].overlaps(other[1])]
