"""Whole pages with inputs that are no normal numbers, and with trials."""

from __future__ import annotations

import csv
import re
from itertools import combinations

import msgspec
import pytest
from markdown_it import MarkdownIt
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bench import store
from bench.fidelity.trial import KINDS
from bench.record import Failed, Unsupported, encode
from bench.report import canvas, index, inside, pages, sentence
from bench.report.sentence import Panel
from bench.store import Reading
from tests.bench import runs
from tests.bench.report import made_trials as made
from tests.bench.report.test_fidelity_tables import ERRORS, FIVE, bare


@pytest.fixture
def unpainted(monkeypatch):
    monkeypatch.setattr(canvas, "_rendered", lambda figure, form: form.encode())


def drop_ins(*variants, seeds=(0,)):
    return [
        made.record(name, made.replaced(cosine, attention=made.attention(1 - cosine, lowest=-0.1)), seed=seed)
        for seed in seeds
        for name, cosine in variants
    ]


EVERY = drop_ins(("naive_sdpa", 1.0), *((name, 1 - error) for name, error in FIVE.items()))
SOLVED = [made.record(name, made.trained(accuracy), task="recall") for name, accuracy in
          (("naive_sdpa", 1.0), ("bigbird", 0.7), ("no_attention", 0.1))]  # fmt: skip


def written(out, records=(), trials=(), *, problems=()):
    tried = made.tried(*trials, problems=problems)
    return pages.write(Reading(list(records), [], {}), out, tried=tried).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Everything at once, with pictures."""
    out = tmp_path_factory.mktemp("whole") / "report"
    records = [*bare("minilm", FIVE), *bare("normal", FIVE), *bare("matched", FIVE)]
    return out, written(out, records, [*EVERY, *SOLVED])


def test_its_parts_come_in_order(whole):
    _, text = whole
    headings = re.findall(r"^#{2,3} (.*)$", text, re.MULTILINE)
    parts = [
        "Fidelity", "Fidelity by input source", "Inside a model", "Weights inside the encoder",
        "Do the ranks hold over seeds?", "Which figure predicts the drop-in?", "Published results", "Side by side",
    ]  # fmt: skip
    start = headings.index("Fidelity")
    assert headings[start : start + len(parts)] == parts
    assert "dropped in, recall: 9 of 9 trials with a result" in text.splitlines()[3]


def test_its_links_lead_somewhere_and_its_tables_are_whole(whole):
    folder, text = whole
    targets = re.findall(r'\]\(([^)#]+)\)|(?:href|src|srcset)="([^"]+)"', text)
    names = {one or other for one, other in targets}
    assert names | {"README.md", "report.json"} == {file.name for file in folder.iterdir()}
    assert {"sources.svg", "sentence.svg", "rollout-dark.svg", "trials.csv", "cells.csv"} <= names
    assert not {"1-front.svg", "front.svg", "1-front-memory.svg"} & names  # those of all sources are one picture
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    bars = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    assert sum(token.type == "tr_open" for token in tokens) == len(bars)
    assert "\n\n\n" not in text


def test_a_report_of_trials_alone(tmp_path, unpainted):
    text = written(tmp_path, (), [*EVERY, *SOLVED])
    assert "# Attention on Example CPU" in text
    assert "## The answer" not in text
    assert "cells.csv" not in text
    assert "one seed: preliminary" in text
    assert "| `bigbird` | 0.700 | 0.700 | 0 of 1 | — | — |" in text
    assert "| chance | 0.125 |" in text
    assert "| `no_attention` | 0.100 |" in text
    assert "≈ `bigbird` | sparse" in text  # what was compared
    assert "| device | Example CPU |" in text
    assert "python -m bench train" in text
    card = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=index.Card)
    assert card.headlines == ["dropped into an encoder at 128 tokens, `bigbird` keeps most: cosine 0.80"]
    assert card.thumbnail == "sentence"


def test_a_normal_page_does_not_speak_of_fidelity_by_source(tmp_path, unpainted):
    text = written(tmp_path, bare("normal", ERRORS))
    assert "## Fidelity" not in text
    assert "front-memory.svg" in text


def test_nothing_is_ranked_where_exact_attention_fails(tmp_path, unpainted):
    trials = [
        made.record("naive_sdpa", made.trained(0.5), task="recall"),
        made.record("bigbird", made.trained(0.9), task="recall"),
    ]
    text = written(tmp_path, (), trials)
    assert (
        "> [!WARNING]\n> Nothing is ranked: recall: naive\\_sdpa does not reach 90% on seed 0; give more --steps."
        in text
    )
    assert text.index("| `naive_sdpa` | 0.500") < text.index("| `bigbird` | 0.900")
    assert "`no_attention` was not trained" in text
    assert "here: recall" not in text


def test_trials_without_a_result_say_why(tmp_path, unpainted):
    trials = [*EVERY, made.record("flex", Failed(stage="build", message="it broke")),
              made.record("flex", Unsupported(reasons=["no | backward", "too long"]), task="recall")]  # fmt: skip
    text = written(tmp_path, (), trials)
    assert "| raised an error | build: it broke | `flex` | dropped in, 128 |" in text
    assert "| unsupported | no \\| backward; too long | `flex` | recall, 128 |" in text
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(trials)
    assert (rows[1]["variant"], rows[1]["cosine"], rows[1]["accuracy"]) == ("bigbird", "0.8", "0.85")
    assert rows[-2]["message"] == "it broke"


def test_weights_are_means_over_seeds_beside_the_exact_ones():
    group = drop_ins(("linformer", 0.5), ("bigbird", 0.9)) + drop_ins(("bigbird", 0.7), seeds=(1,))
    table = inside.weights(group).splitlines()
    assert table[2] == "| exact | 3.00 | 30.0 | 0 | 1 |"
    assert table[3] == "| `bigbird` | 2.00 | 10.0 | 0.20 | 0.50 |"
    assert table[4].startswith("| `linformer` | 2.00 | 10.0 | 0.50")
    assert inside.weights([made.record("bigbird", made.replaced(0.9))]) == ""


def test_a_broken_trial_costs_its_line(tmp_path, unpainted):
    text = written(tmp_path, (), EVERY, problems=["/home/somebody/x.jsonl line 3: not a trial (…)"])
    assert "> - x.jsonl line 3: not a trial" in text
    assert "somebody" not in text


def test_trials_are_read_with_everything_else(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"\n".join([encode(runs.record("flex")), *map(encode, EVERY)]) + b"\n")
    reading = store.read(path, apart=KINDS)
    assert (len(reading.records), len(reading.apart), reading.skipped) == (1, len(EVERY), {})


# --- the picture --------------------------------------------------------------------------------------------------


def test_the_deepest_colour_is_not_that_of_the_first_token_alone():
    weights = [[0.9] + [0.1] * 9 + [0.01] * 10 for _ in range(20)]
    assert sentence.deepest(weights) == 0.1
    assert sentence.deepest([[0.5, 0.0], [0.0, 0.0]]) == 0.5
    assert sentence.deepest([[0.0]]) == 1.0
    assert [sentence.level(weight, 0.1) for weight in (0.9, 0.1, 0.025, 0.0, -0.025)] == [12, 12, 6, 0, -6]


def test_no_text_leaves_the_picture_or_covers_another_and_negative_weights_are_dotted(monkeypatch):
    figures = []

    def laid_out(draw, title):
        with canvas.settings():
            figures.append(draw())
            FigureCanvasAgg(figures[-1]).draw()

    monkeypatch.setattr(sentence, "Picture", laid_out)
    found = made.attention(lowest=-0.1)
    for count in (1, 7):
        panels = [Panel("exact", found.exact_map), *(Panel(f"variant {n}", found.map) for n in range(count))]
        sentence.draw(panels, made.TOKENS, "title")
    for figure in figures:
        dots = [line for axes in figure.axes[1:-1] for line in axes.lines]
        assert all(len(line.get_xdata()) == len(made.TOKENS) for line in dots)
        assert len(dots) == len(figure.axes) - 2
        assert not figure.axes[0].lines
        assert [text.get_text() for text in figure.axes[0].get_yticklabels()][2] == "bank"
        words = [text for axes in figure.axes for text in [*axes.texts, axes._left_title]]
        words += [tick for axes in figure.axes if axes.axison for tick in axes.get_yticklabels()]
        boxes = [(text.get_text(), text.get_window_extent()) for text in words if text.get_text()]
        width, height = figure.get_size_inches() * figure.dpi
        assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for _, box in boxes)
        assert not [(one[0], other[0]) for one, other in combinations(boxes, 2) if one[1].overlaps(other[1])]
    assert sentence.draw([], made.TOKENS, "title") is None
