from __future__ import annotations

import errno
import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from markdown_it import MarkdownIt

from bench import store
from bench.errors import NotComparableError, WrongUsageError
from bench.record import Failed, OutOfMemory, Unsupported
from bench.report import canvas, pages
from bench.store import Reading
from tests.bench import runs
from tests.bench.report import golden

MARKDOWN = MarkdownIt("commonmark").enable("table")


@pytest.fixture(autouse=True)
def unpainted(monkeypatch):
    """Pictures are laid out and not painted, which is most of the time; tests of their bytes undo this."""
    monkeypatch.setattr(canvas, "_rendered", lambda figure, form: form.encode())
    return monkeypatch


def written(tmp_path, *records, baseline=None, problems=(), skipped=None):
    """The text of a report."""
    return pages.write(
        Reading(list(records), list(problems), skipped or {}), tmp_path / "report", baseline=baseline
    ).read_text(encoding="utf-8")


def read(name):
    return store.read(*(runs.FOLDER / f"{each}.jsonl" for each in name.split("+")))


def rows_under(text, heading):
    """The cells of the table whose first column is headed so, by its first cell."""
    (table,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n\| ---.*\n((?:\|.*\n?)+)", text, re.MULTILINE)
    rows = (re.split(r"(?<!\\)\|", line)[1:-1] for line in table.strip().splitlines())
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in rows}


SMALL = [
    runs.record("naive_sdpa", runs.measured([8e-3] * 8, peak_mib=64)),
    runs.record("naive_sdpa", runs.measured([32e-3] * 8, peak_mib=256), length=2048),
    runs.record("sdpa_flash", runs.measured([2e-3] * 8, peak_mib=2, saved_bytes=2**20)),
    runs.record("sdpa_flash", runs.measured([8e-3] * 8, peak_mib=4, saved_bytes=2**20), length=2048),
    runs.record("linformer", runs.measured([1e-3] * 8, peak_mib=8, relative_error=0.7)),
    runs.record("linformer", OutOfMemory(stage="memory", message="needs 9.5 GiB"), length=2048),
    runs.record("xformers", Unsupported(reasons=["xformers needs CUDA"])),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return written(tmp_path_factory.mktemp("small"), *SMALL)


# --- the whole ------------------------------------------------------------------------------------------------


def test_the_fixtures_are_what_the_model_makes():
    for name, lines in runs.RUNS.items():
        assert (runs.FOLDER / f"{name}.jsonl").read_bytes() == b"\n".join(lines()) + b"\n", "python -m tests.bench.runs"


@pytest.mark.parametrize("name", golden.REPORTS)
def test_reports_are_as_they_were(tmp_path, name):
    """To accept a change: ``python -m tests.bench.report.golden``, and read the difference."""
    assert golden.page(name, tmp_path) == (golden.FOLDER / f"{name}.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=["gpu+odd", "odd", "processes"])
def folder(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    pages.write(read(request.param), out)
    return out


def test_links_and_pictures_lead_somewhere(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    targets = [*re.findall(r"\]\(([^)]+)\)", text), *re.findall(r'(?:href|src|srcset)="([^"]+)"', text)]
    assert len(targets) > 5
    for target in targets:
        assert target[1:] in headings if target.startswith("#") else (folder / target).is_file(), target
    referred = {"README.md", "report.json", *(target for target in targets if not target.startswith("#"))}
    assert {file.name for file in folder.iterdir()} == referred


def test_the_page_is_valid_markdown(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    tokens = MARKDOWN.parse(text)
    assert "\n\n\n" not in text
    widths = []
    for token in tokens:
        if token.type == "tr_open":
            widths.append(0)
        elif token.type in ("th_open", "td_open"):
            widths[-1] += 1
    bars = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    assert len(widths) == len(bars)
    assert max(widths) <= 9
    Balanced().feed("".join(token.content for token in tokens if token.type == "html_block"))


class Balanced(HTMLParser):
    """Fails on tags that do not match."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("img", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_same_records_give_the_same_bytes(tmp_path, unpainted):
    unpainted.undo()
    first, second = (pages.write(read("odd+processes"), tmp_path / name).parent for name in "ab")
    names = sorted(file.name for file in first.iterdir())
    assert names == sorted(file.name for file in second.iterdir())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_reading_needs_no_torch(tmp_path):
    code = f"""
import sys
from pathlib import Path
from bench.report import pages
from bench import store
pages.write(store.read({str(runs.FOLDER / "odd.jsonl")!r}), Path({str(tmp_path / "out")!r}))
assert not {{"torch", "matplotlib.pyplot"}} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- figures --------------------------------------------------------------------------------------------------


def test_the_answer_comes_first(small):
    assert small.index("## The answer") < small.index("- **full, fwd**: exact: `sdpa_flash`") < small.index("<picture>")
    answers = rows_under(small, "workload")
    assert answers["**full, fwd**"] == [
        "exact",
        "`sdpa_flash`<br>2.00 ms ±0%<br>2.00 MiB",
        "`sdpa_flash`<br>8.00 ms ±0%<br>4.00 MiB",
    ]
    assert answers[""] == ["approximate", "`linformer`<br>1.00 ms ±0%<br>8.00 MiB<br>error 0.70", "–"]


def test_times_are_bold_where_they_are_best_and_say_what_is_missing(small):
    assert rows_under(small, "median time") == {
        "`naive_sdpa`": ["8.00 ms ±0%", "32.0 ms ±0%"],
        "`sdpa_flash`": ["**2.00 ms ±0%**", "**8.00 ms ±0%**"],
        "≈ `linformer`": ["**1.00 ms ±0%**", "out of memory"],
    }
    assert "Not in this table: `xformers` ([why]" in small


def test_speedups_memory_errors_and_fidelity(small):
    assert rows_under(small, "speed-up")["`sdpa_flash`"] == ["4.0× [4.0, 4.0]", "4.0× [4.0, 4.0]"]
    assert rows_under(small, "peak (saved) MiB")["`sdpa_flash`"] == ["2.00 (1.00)", "4.00 (1.00)"]
    assert rows_under(small, "error of tolerance")["`naive_sdpa`"] == ["2.0e-07 of 1.5e-05"] * 2
    assert rows_under(small, "relative error, cosine") == {"≈ `linformer`": ["0.70, cos 0.76", "out of memory"]}


def test_times_of_other_clocks_are_beside(tmp_path):
    outcome = runs.measured([4e-5] * 8, seconds_warm=[3e-5, 2e-5, 2.5e-5], seconds_graph=[1e-5] * 6)
    text = written(tmp_path, runs.record("flex", outcome, host=runs.GPU))
    assert rows_under(text, "warm cache, graph") == {"`flex`": ["25.0 µs<br>10.0 µs graph"]}


def test_exponents_stand_beside_the_claims(tmp_path):
    records = [
        runs.record("linformer", runs.measured([1e-6 * n**2] * 8, peak_mib=n / 64), length=n)
        for n in (256, 512, 1024, 2048)
    ]
    text = written(tmp_path, *records)
    assert rows_under(text, "exponent of N")["≈ `linformer`"] == [
        "2.00 [2.00, 2.00]", "2.00", "1", "does not hold here", "1.00", "1.00", "1", "holds",
    ]  # fmt: skip


def test_gaps_are_grouped_with_their_reason(small):
    assert rows_under(small, "what") == {
        "out of memory": ["memory: needs 9.5 GiB", "`linformer`", "1: full; fwd; 2k"],
        "unsupported": ["xformers needs CUDA", "`xformers`", "1: full; fwd; 1k"],
    }
    assert "2 of 7 cells have no figure" in small


def test_the_environment_is_told(small):
    facts = {name: told[0] for name, told in rows_under(small, "property").items()}
    assert facts["device"] == "Example CPU"
    assert facts["CPU"] == "Example CPU, 2 usable cores"
    assert facts["revision"] == "0123456789ab"
    assert facts["threads"] == "2"
    assert facts["samples per process"] == "8"
    assert facts["load"] == "0.42"
    assert "torch 2.13.0" in facts["versions"]
    assert f"```console\n{runs.COMMAND}\n```" in small
    assert "- `naive_sdpa`: `aten::bmm`, `aten::softmax`" in small


def test_a_table_can_be_repeated_by_one_command(small):
    row, command = re.findall(r"python -m bench run --variants.*", small)
    assert "--variants naive_sdpa --seq-len 1k,2k --mask full" in row
    assert "--variants naive_sdpa,sdpa_flash,xformers,linformer --seq-len 1k,2k --mask full --mode fwd" in command
    assert "--dtype float32 --device cpu" in command


def test_parameters_are_part_of_the_command(tmp_path):
    records = [runs.record("linformer", parameters={"rank": rank, "projection": "pooling"}) for rank in (64, 128)]
    text = written(tmp_path, *records)
    assert "--param linformer.rank=64,128 --param linformer.projection=pooling" in text
    assert "≈ `linformer (rank=64)`" in text


def test_many_lengths_are_several_tables(tmp_path):
    records = [runs.record("flex", runs.measured(), length=256 * n) for n in range(1, 9)]
    text = written(tmp_path, *records)
    assert "| median time | 256 | 512 | 768 | 1k |" in text
    assert "| median time | 1280 | 1536 | 1792 | 2k |" in text


def test_another_baseline(tmp_path):
    text = written(tmp_path, *SMALL, baseline="sdpa_flash")
    assert "Speed-up over sdpa_flash" in text
    assert rows_under(text, "speed-up")["`naive_sdpa`"] == ["0.25× [0.25, 0.25]"] * 2


def test_without_the_baseline_there_are_no_speedups(tmp_path):
    assert "Speed-up" not in written(tmp_path, runs.record("flex"))


# --- hard cases -----------------------------------------------------------------------------------------------


def test_machines_are_never_mixed(tmp_path):
    text = written(
        tmp_path,
        runs.record("naive_sdpa", runs.measured([8e-3] * 8)),
        runs.record("sdpa_flash", runs.measured([1e-3] * 8), host=runs.GPU),
    )
    assert "## 1. Example CPU, float32" in text
    assert "## 2. Example GPU, float32" in text
    assert "Speed-up" not in text
    assert "cannot be compared" in text


def test_what_sets_alike_grounds_apart_is_in_their_titles(tmp_path):
    text = written(
        tmp_path,
        runs.record("flex"),
        runs.record("flex", settings=msgspec.structs.replace(runs.SETTINGS, threads=1)),
        runs.record("flex", source=msgspec.structs.replace(runs.SOURCE, git="fedcba9876543210")),
    )
    titles = re.findall(r"^## \d\. (.*)$", text, re.MULTILINE)
    assert len(set(titles)) == 3
    assert "threads 1" in titles[1]
    assert "revision fedcba987654" in titles[2]


def test_nothing_measured(tmp_path):
    text = written(tmp_path, runs.record("flex", Failed(stage="build", message="broke")))
    assert "**Nothing was measured.**" in text
    assert "build: broke" in text
    assert "<img" not in text


def test_checked_alone(tmp_path):
    text = written(tmp_path, runs.record("flex", runs.measured([], peak_mib=None)))
    assert "**Nothing was timed**" in text
    assert rows_under(text, "error of tolerance") == {"`flex`": ["2.0e-07 of 1.5e-05"]}


def test_what_no_record_speaks_of_is_counted(tmp_path):
    text = written(tmp_path, runs.record("flex"), runs.record("sdpa_flash", length=2048))
    assert "Of 2 more combinations" in text


def test_notes_that_differ_in_numbers_are_one(tmp_path):
    outcomes = [runs.measured(notes=[f"{count} of 30 samples dropped"]) for count in (3, 4, 4)]
    text = written(tmp_path, *(runs.record("flex", one, length=256 * 2**n) for n, one in enumerate(outcomes)))
    assert "- 3 of 30 samples dropped (and 1 more that differ in numbers) (3×)" in text


def test_every_cell_measured(tmp_path):
    assert "Every cell has a figure." in written(tmp_path, runs.record("flex"))


def test_what_could_not_be_read_is_told_without_its_folder(tmp_path):
    text = written(
        tmp_path,
        runs.record("flex"),
        problems=["/home/somebody/secret/run.jsonl line 3: cut short, not a record (…)"],
        skipped={"module": 2},
    )
    assert "> - run.jsonl line 3: cut short" in text
    assert "somebody" not in text
    assert "> - 2 lines of the kind `module`" in text


def test_names_that_need_care_stay_whole(tmp_path):
    text = pages.write(read("odd"), tmp_path).read_text(encoding="utf-8")
    assert "≈ `注意力`" in text
    assert r"≈ `a\|b*c_<d>_$e$`" in text


def test_masks_with_the_same_letters_have_pictures_of_their_own(tmp_path):
    text = written(tmp_path, runs.record("flex", mask="window:16"), runs.record("flex", mask="window:1+softcap:6"),
                   runs.record("flex", mask="window-16"))  # fmt: skip
    names = re.findall(r'href="(time-[^"]*)\.png"', text)
    assert len(names) == len(set(names)) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": msgspec.structs.replace(runs.SOURCE, dirty=True)}, "this revision alone does not repeat"),
        ({"outcome": runs.measured(conditions={"others_busy_cores": 1.5})}, "Other work kept 1.5 cores busy"),
        ({"outcome": runs.measured(conditions={"steal_share": 0.08})}, "took 8.0% of the cores' time away"),
        ({"outcome": runs.measured(conditions={"load_1min": 4.0})}, "The load was 4.0 on 2 cores"),
        (
            {"outcome": runs.measured(conditions={"throttling": "thermal"})},
            "throttled during 1 of 1 measurements (thermal)",
        ),
        ({"outcome": runs.measured(settled=False)}, "1 of 1 series of samples had not settled"),
        ({"outcome": runs.measured(dropped_share=0.25)}, "Up to 25% of a case's samples were dropped"),
        (
            {"outcome": runs.measured(roofline_fraction=1.2)},
            "1 case reached up to 120% of what the machine was measured",
        ),
        ({}, "measured in one process"),
        ({"variant": "linformer"}, "Inputs were random normal numbers"),
        ({"variant": "reformer_lsh", "mask": "causal"}, r"reformer\_lsh: under a causal mask"),
    ],
)
def test_what_a_reader_is_warned_of(tmp_path, change, words):
    assert words in written(tmp_path, runs.record(**({"variant": "flex"} | change)))


def test_what_a_case_that_does_not_count_was_told_of_is_in_the_environment_and_warns_of_nothing(tmp_path):
    busy = {"others_busy_cores": 1.5, "load_1min": 4.0, "throttling": "thermal"}
    text = written(
        tmp_path,
        runs.record("flex"),
        runs.record("xformers", runs.measured([2e-3] * 5, timer="another", conditions=busy, settled=False)),
        runs.record("xformers", Failed(stage="time", message="no"), process=1),
    )
    facts = {name: told[0] for name, told in rows_under(text, "property").items()}
    assert facts["timer"] == r"another, perf\_counter, blocks of 10 ms"
    assert facts["samples per process"] == "5 to 8"
    assert facts["processes per case"] == "1 to 2"
    assert facts["load"] == "2.21 (0.42 to 4.00)"
    assert not re.search("kept 1.5 cores|throttled|had not settled", text)


def test_a_quiet_machine_with_several_processes_gives_no_warning(tmp_path):
    text = written(tmp_path, *(runs.record("flex", process=process) for process in range(3)))
    assert "[!WARNING]" not in text
    assert "| processes per case | 3 |" in text


# --- files ----------------------------------------------------------------------------------------------------


def test_an_earlier_report_is_replaced_whole_and_nothing_else(tmp_path):
    out = tmp_path / "report"
    written(tmp_path, runs.record("flex", mask="causal"))
    (out / "notes.txt").write_text("mine")
    (out / "timeline.png").write_text("mine")
    written(tmp_path, runs.record("flex"))
    names = {file.name for file in out.iterdir()}
    assert {"notes.txt", "timeline.png", "time-full-fwd.svg"} <= names
    assert not {"time-causal-fwd.svg", "memory-causal-fwd.png"} & names


def test_a_readme_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report/README.md").write_text("my project")
    with pytest.raises(WrongUsageError, match="is something else: give another --out"):
        written(tmp_path, runs.record("flex"))
    assert [file.name for file in (tmp_path / "report").iterdir()] == ["README.md"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "report").write_text("a file")
    with pytest.raises(WrongUsageError, match="cannot write to"):
        written(tmp_path, runs.record("flex"))


def test_a_full_disk_leaves_an_earlier_report_as_it_was_and_no_part_of_a_new_one(tmp_path, monkeypatch):
    written(tmp_path, runs.record("flex", mask="causal"))
    before = {file.name: file.read_bytes() for file in (tmp_path / "report").iterdir()}
    write_bytes, full = Path.write_bytes, itertools.count()

    def until_full(path, content):
        if next(full) >= 3:
            write_bytes(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", until_full)
    for out in ("report", "further/down"):
        with pytest.raises(WrongUsageError, match="No space left on device; give another --out"):
            pages.write(Reading(SMALL, [], {}), tmp_path / out)
    assert {file.name: file.read_bytes() for file in (tmp_path / "report").iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["report"]


def test_no_records(tmp_path):
    with pytest.raises(NotComparableError, match="got none"):
        written(tmp_path)


# --- large ones -----------------------------------------------------------------------------------------------


def test_many_grounds_have_pictures_of_the_first_alone_and_rows_of_all(tmp_path):
    records = [runs.record("naive_sdpa", head_dim=width, length=n) for width in range(8, 22) for n in (256, 512)]
    text = written(tmp_path, *records)
    names = {file.name for file in (tmp_path / "report").glob("*.png")}
    assert {"1-speedup.png", "1-time-full-fwd.png", "4-speedup.png"} <= names
    assert not any(name.startswith(("2-time", "5-", "13-")) for name in names)
    assert "and 2 more, which have rows in cells.csv alone" in text
    assert len((tmp_path / "report/cells.csv").read_text().splitlines()) == 29


def test_further_seeds_have_rows_alone(tmp_path):
    several = itertools.product((2, 0, 1), ("normal", "minilm"))
    text = written(tmp_path, *(runs.record("flex", seed=seed, inputs=inputs) for seed, inputs in several))
    titles = [line for line in text.splitlines() if re.match(r"## \d", line)]
    assert [title.split("inputs ")[1] for title in titles] == ["minilm, seed 0", "normal, seed 0"]
    assert "and 4 more, which have rows in cells.csv alone" in text


def test_many_workloads_have_rows_alone(tmp_path):
    text = written(tmp_path, *(runs.record("flex", mask=f"window:{width}") for width in range(1, 15)))
    assert "2 more workloads have rows in [cells.csv](cells.csv) alone." in text


def test_of_very_many_records_there_is_no_table(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MOST_ROWS", 2)
    text = written(tmp_path, *(runs.record("flex", process=process) for process in range(3)))
    assert "Of 3 records there is no table" in text
    assert not (tmp_path / "report/measurements.csv").exists()


def test_the_noise_floor_is_told(tmp_path):
    text = written(tmp_path, *(runs.record("flex", runs.measured([1 + 0.02 * n] * 8), process=n) for n in range(3)))
    assert "| noise floor | ±2.0% in the median of 1 case, ±2.0% in the worst (SD between processes) |" in text
