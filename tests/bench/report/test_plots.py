from __future__ import annotations

import subprocess
import sys
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bench import cells, stats
from bench.report import canvas, labels, panels, plots, styles
from tests.bench import runs


def curves_of(records, figure="time"):
    ((_, found),) = cells.gather(records).items()
    points = {}
    for cell in found:
        value = cell.seconds if figure == "time" else cell.peak_bytes and stats.Estimate(cell.peak_bytes)
        if value:
            points.setdefault(cell.contender, {})[cell.length] = value
    return [panels.Curve(contender, values) for contender, values in points.items()]


def contender(variant, family="exact", sibling=0):
    return cells.Contender(variant, variant, "{}", family, family == "exact", None, None, sibling=sibling)


@pytest.fixture(scope="module")
def sixteen():
    """All sixteen variants over eight lengths, some of which end early."""
    model = runs.MODEL | {"sdpa_efficient": (80, 4.6, 1.97, 1, 0), "sdpa_cudnn": (60, 4.6, 1.97, 1, 0),
                          "xformers": (71, 4.6, 1.97, 1, 0)}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "MODEL", model)
        records = runs.sweep(
            lengths=[256 * 2**power for power in range(8)], masks=("full",), modes=("fwd",), host=runs.GPU
        )
    return curves_of(
        record
        for record in records
        if record.case.workload.query_length
        <= {"naive_sdpa": 4096, "reformer_pytorch": 256}.get(record.case.variant, 10**6)
    )


def drawn(curves, quantity=plots.TIME):
    """The figure behind a picture, laid out."""
    with canvas.settings():
        lengths = sorted({length for curve in curves for length in curve.points})
        draw = (
            plots._lines(curves, quantity, lengths, "length N") if len(lengths) > 1 else plots._dots(curves, quantity)
        )
        FigureCanvasAgg(draw).draw()
    return draw


# --- names ----------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=20).map(sorted))
def test_names_keep_their_distance_their_order_and_the_panel(positions):
    gap = 0.05
    places = labels.spread(positions, gap, 0.0, 1.0)
    assert all(above - below >= gap - 1e-9 for below, above in pairwise(places))
    assert places[0] >= -1e-9
    assert places[-1] <= 1 + 1e-9


@given(st.lists(st.integers(0, 10), min_size=1, max_size=8, unique=True).map(sorted))
def test_names_that_are_apart_already_stay(steps):
    positions = [step / 10 for step in steps]
    assert labels.spread(positions, 0.1 - 1e-12, 0.0, 1.0) == pytest.approx(positions, abs=1e-9)


def test_names_that_touch_part_evenly():
    assert labels.spread([0.5, 0.5, 0.5], 0.1, 0.0, 1.0) == pytest.approx([0.4, 0.5, 0.6])


def test_too_many_names_share_the_panel():
    assert labels.spread([0.5] * 5, 0.5, 0.0, 1.0) == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_characters_that_the_font_lacks_are_spelled_out():
    assert labels.shown("naïve_ψ") == "naïve_ψ"
    assert labels.shown("注意") == r"\u6ce8\u610f"


def test_long_names_are_cut():
    assert len(labels.shown("x" * 99)) == labels.LONGEST


def test_long_names_that_differ_at_their_end_stay_different():
    kernels = ("linformer", "linformer_pytorch", "reformer_pytorch", "bigbird block=64")
    shown = {labels.shown(f"my_experimental_attention_kernel_{kernel}") for kernel in kernels}
    assert len(shown) == len(kernels)
    assert all(name.startswith("my_") for name in shown)


@pytest.mark.parametrize("figure", ["time", "memory"])
def test_no_text_of_sixteen_lines_covers_another_or_leaves_the_picture(sixteen, figure):
    quantity = plots.TIME if figure == "time" else plots.memory(64 * 2**30, "memory of the device")
    figure = drawn(sixteen, quantity)
    boxes = [
        (text.get_text(), text.get_window_extent())
        for axes in figure.axes
        for text in [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes.title, axes._left_title,
                     *axes.get_xticklabels(), *axes.get_yticklabels()]
        if text.get_text() and text.get_visible()
    ]  # fmt: skip
    width, height = figure.get_size_inches() * figure.dpi
    for name, box in boxes:
        assert box.x0 >= 0, name
        assert box.x1 <= width, name
        assert box.y0 >= 0, name
        assert box.y1 <= height, name
    touching = [(one[0], other[0]) for one, other in combinations(boxes, 2) if one[1].overlaps(other[1])]
    assert touching == []


def test_lines_that_end_early_say_so(sixteen):
    shown = {text.get_text() for axes in drawn(sixteen).axes for text in axes.texts}
    assert {"naive_sdpa, to 4k", "reformer_pytorch, to 256", "sdpa_flash", "fastest exact"} <= shown


def test_few_lines_share_a_panel_and_many_do_not(sixteen):
    assert len(drawn(sixteen).axes) == 2
    assert len(drawn(sixteen[-3:] + sixteen[:3]).axes) == 1


def test_both_panels_have_one_scale(sixteen):
    one, other = drawn(sixteen).axes
    assert one.get_ylim() == other.get_ylim()
    assert one.get_xlim() == other.get_xlim()


# --- axes -----------------------------------------------------------------------------------------------------


def test_lengths_are_ticks_as_people_write_them(sixteen):
    axes = drawn(sixteen).axes[0]
    ticks = [text.get_text() for text in axes.get_xticklabels()]
    assert ticks == ["256", "512", "1k", "2k", "4k", "8k", "16k", "32k"]
    assert axes.get_xlabel() == "length N (tokens)"
    assert all(text.get_text().endswith((" ms", " µs", " s")) for text in axes.get_yticklabels())


@given(st.lists(st.integers(1, 2**20), min_size=2, max_size=40, unique=True).map(sorted))
def test_ticks_are_few_and_of_the_lengths(lengths):
    chosen = panels.ticks(lengths)
    assert set(chosen) <= set(lengths)
    assert 1 <= len(chosen) <= 8


def test_the_device_is_shown_where_it_is_near():
    records = runs.sweep(("naive_sdpa",), masks=("full",), modes=("fwd",))
    near, far = (plots.memory(limit, "the limit") for limit in (300 * 2**20, 2**50))
    shown = [
        [text.get_text() for text in drawn(curves_of(records, "memory"), one).axes[0].texts] for one in (near, far)
    ]
    assert "the limit" in shown[0]
    assert "the limit" not in shown[1]


# --- pictures -------------------------------------------------------------------------------------------------


def test_the_same_curves_give_the_same_bytes():
    records = runs.sweep(("naive_sdpa", "linformer"), masks=("full",), modes=("fwd",))
    first, second = (plots.draw(curves_of(records), plots.TIME, "Time · full, fwd") for _ in range(2))
    assert (first.svg, first.dark_svg, first.png) == (second.svg, second.dark_svg, second.png)
    assert first.svg.startswith(b"<?xml")
    assert b"<dc:date>" not in first.svg
    assert first.png.startswith(b"\x89PNG")


def test_one_length_is_a_row_a_contender_the_least_on_top():
    axes = drawn(curves_of(runs.odd())).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "naive_sdpa", "sdpa_flash", "a|b*c_<d>_$e$", r"\u6ce8\u610f\u529b",
    ]  # fmt: skip
    assert [text.get_text() for text in axes.texts] == ["21.0 ms", "10.0 ms", "5.00 ms", "4.00 ms"]


def test_without_points_there_is_no_picture():
    assert plots.draw([], plots.TIME, "nothing") is None
    assert plots.draw([panels.Curve(contender("flex"), {})], plots.TIME, "nothing") is None


def test_drawing_leaves_matplotlib_as_it_was():
    code = """
import sys, matplotlib
before = {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
from bench.report import plots
from tests.bench import runs
from tests.bench.report.test_plots import curves_of
plots.draw(curves_of(runs.sweep(("flex",), masks=("full",), modes=("fwd",))), plots.TIME, "title")
assert "matplotlib.pyplot" not in sys.modules and "torch" not in sys.modules
assert {name: matplotlib.rcParams[name] for name in before} == before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- looks ----------------------------------------------------------------------------------------------------


def test_variants_of_a_kind_look_different_even_without_colour():
    kinds = {name: runs.ABOUT[name].exact if name in runs.ABOUT else name in ("flash_attn", "sdpa_expanded_kv")
             for name in styles._STYLES}  # fmt: skip
    assert set(kinds) >= set(runs.ABOUT)
    for exact in (True, False):
        looks = [styles.style(contender(variant)) for variant, is_exact in kinds.items() if is_exact is exact]
        assert len({(look.marker, look.colour) for look in looks}) == len(looks)
        assert len({(look.marker, look.line) for look in looks}) >= len(looks) - 1


def test_a_look_depends_on_the_variant_alone():
    assert styles.style(contender("mine", "kernel")) == styles.style(contender("mine", "kernel"))
    assert styles.style(contender("mine", "sparse")).colour in styles._FAMILIES["sparse"]


def test_another_set_of_parameters_keeps_colour_and_marker():
    first, second = (styles.style(contender("linformer", "low_rank", sibling)) for sibling in (0, 1))
    assert (first.colour, first.marker) == (second.colour, second.marker)
    assert second.is_open
    assert first.line != second.line


@pytest.mark.parametrize("variant", [*runs.ABOUT, "mine", "yours"])
def test_colours_show_on_white(variant):
    colour = styles.style(contender(variant)).colour
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    assert 1.05 / (luminance + 0.05) >= 2.2
