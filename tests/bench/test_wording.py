from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from bench import wording
from bench.report import markdown
from bench.stats import Estimate

MARKDOWN = MarkdownIt("commonmark").enable("table")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(1.2345e-3, "1.23 ms"), (67.06e-6, "67.1 µs"), (12.34, "12.3 s"), (123.4, "123 s"), (4321.0, "4321 s"),
     (9.996e-3, "10.0 ms"), (0.9999e-3, "1.00 ms"), (3.2e-10, "0.320 ns")],
)  # fmt: skip
def test_durations(seconds, written):
    assert wording.duration(seconds) == written


@pytest.mark.parametrize(
    ("size", "written"),
    [(1024, "1.00 KiB"), (64 * 2**20, "64.00 MiB"), (0.15 * 2**30, "0.15 GiB"), (3 * 2**30, "3.00 GiB")],
)
def test_a_limit_is_never_nothing(size, written):
    assert wording.size(size) == written


@pytest.mark.parametrize(
    ("cosine", "written"), [(0.9953, "0.9953"), (0.99996, "1.0000"), (0.731, "0.73"), (0.989, "0.99"), (-0.2, "-0.20")]
)
def test_cosines(cosine, written):
    assert wording.cosine(cosine) == written


@given(st.floats(1e-10, 1e5))
def test_a_duration_is_right_to_three_digits(seconds):
    value, unit = wording.duration(seconds).split()
    assert float(value) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit] == pytest.approx(seconds, rel=6e-3)


@pytest.mark.parametrize(
    ("size", "written"), [(2**26, "64.0"), (1.58 * 2**20, "1.58"), (2**32, "4096"), (4096, "0.0039"), (0, "0")]
)
def test_mebibytes(size, written):
    assert wording.mebibytes(size) == written


@pytest.mark.parametrize(
    ("count", "written"), [(1, "1"), (256, "256"), (1000, "1000"), (1024, "1k"), (131072, "128k"), (1536, "1536")]
)
def test_lengths(count, written):
    assert wording.length(count) == written


def test_of_many_lengths_the_ends_are_told():
    assert wording.lengths([2048, 256, 1024, 256]) == "256, 1k, 2k"
    assert wording.lengths(range(100, 112)).count(",") == 11
    assert wording.lengths(range(100, 1025)) == "100 to 1k (925 of them)"


@pytest.mark.parametrize(
    ("estimate", "written"),
    [
        (Estimate(1e-3, 0.996e-3, 1.004e-3), "1.00 ms ±0.40%"),
        (Estimate(1e-3, 0.88e-3, 1.12e-3), "1.00 ms ±12%"),
        (Estimate(1e-3, 0.5e-3, 3e-3), "1.00 ms [500 µs, 3.00 ms]"),
        (Estimate(1e-3), "1.00 ms ±?"),
    ],
)
def test_times_with_their_interval(estimate, written):
    assert wording.time(estimate) == written


@pytest.mark.parametrize(
    ("estimate", "written"),
    [
        (Estimate(4.32, 4.1, 4.5), "4.3× [4.1, 4.5]"),
        (Estimate(1.04, 1.01, 1.07), "1.04× [1.01, 1.07]"),
        (Estimate(123.4), "123× ±?"),
        (Estimate(0.523, 0.5, 0.55), "0.52× [0.50, 0.55]"),
    ],
)
def test_ratios(estimate, written):
    assert wording.times(estimate) == written


def test_errors_are_powers_of_ten_where_they_are_rounding():
    assert [wording.error(value) for value in (0, 2.13e-7, 0.0123, 0.74, 1.31)] == [
        "0",
        "2.1e-07",
        "0.012",
        "0.74",
        "1.3",
    ]


def test_lists_and_counts():
    assert wording.listed(["a"]) == "a"
    assert wording.listed(["a", "b", "c"]) == "a, b and c"
    assert [wording.counted(count, "process") for count in (1, 2000)] == ["1 process", "2,000 processes"]


# --- Markdown -------------------------------------------------------------------------------------------------


def shown(source):
    """The text that a reader sees."""
    tokens = [child for token in MARKDOWN.parse(source) for child in token.children or []]
    assert {token.type for token in tokens} <= {"text", "text_special", "code_inline", "softbreak"}
    return "".join(token.content for token in tokens if token.type != "text_special" or token.content)


def test_reasons_are_few_and_different():
    assert wording.reasons(["a"]) == "a"
    assert wording.reasons(["a", "b", "b", "c", "a", "b"]) == "b; a; c"
    assert wording.reasons("abcde") == "a; b; c; and 2 more, as the records say"


WORDS = st.text(st.sampled_from("ab_*`<>[]()|\\$~&#! é注"), min_size=1).map(lambda text: f"x{text}x")


@given(WORDS)
def test_words_show_as_they_are(words):
    assert shown(markdown.text(words)) == " ".join(words.split())


@given(WORDS)
def test_names_show_as_they_are(words):
    assert shown(markdown.code(words)) == " ".join(words.split())


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_nothing_breaks_a_table(rows):
    source = markdown.table(["name", "text"], [[markdown.code(name), markdown.text(text)] for name, text in rows])
    inside = [token for token in MARKDOWN.parse(source) if token.type == "inline"][2:]
    told = ["".join(child.content for child in token.children) for token in inside]
    assert told == [" ".join(words.split()) for row in rows for words in row]


def test_a_table_without_rows_is_nothing():
    assert markdown.table(["a"], []) == ""


def test_commands_keep_their_backticks():
    assert markdown.console(["echo ```"]) == "````console\necho ```\n````"


def test_a_summary_is_no_tag():
    assert "<summary>a &lt;b&gt; &amp; c</summary>" in markdown.details("a <b> & c", "body")
