from __future__ import annotations

import json
import shlex

import pytest

from bench.cli import main
from bench.cli.recommend import size_bytes
from bench.errors import WrongUsageError
from bench.record import OutOfMemory, encode
from tests.bench import runs


def timed(variant, milliseconds, length=1024, **more):
    return runs.record(variant, runs.measured([milliseconds * 1e-3] * 8, **more), length=length)


FOUND = [
    timed("naive_sdpa", 16, peak_mib=64),
    timed("naive_sdpa", 64, 2048, peak_mib=256),
    timed("sdpa_flash", 4, peak_mib=2),
    timed("sdpa_flash", 16, 2048, peak_mib=4),
    timed("flex", 4.1, peak_mib=1),
    runs.record("flex", OutOfMemory(stage="time", message="needs 9 GiB"), length=2048),
    timed("linformer", 1, peak_mib=8, relative_error=0.6),
    timed("linformer", 2, 2048, peak_mib=16, relative_error=0.7),
    timed("bigbird", 3, peak_mib=3, relative_error=0.1),
    timed("bigbird", 6, 2048, peak_mib=6, relative_error=0.1),
    timed("uniform", 0.1, relative_error=0.8),
]


@pytest.fixture
def ask(tmp_path, capsys):
    path = tmp_path / "run.jsonl"

    def asked(*arguments, records=FOUND):
        path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
        with pytest.raises(SystemExit) as ended:
            main(["recommend", str(path), *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return asked


def chosen(answer):
    code, out, _ = answer
    assert code == 0
    (advice,) = json.loads(out)
    return [advice[kind] and advice[kind]["variant"] for kind in ("exact", "approximate")]


def test_the_fastest_of_each_kind_and_never_the_floor(ask):
    assert chosen(ask("--seq-len", "1k", "--json")) == ["sdpa_flash", "linformer"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (["--min-fidelity", "0.99"], ["sdpa_flash", "bigbird"]),
        (["--max-error", "0.3"], ["sdpa_flash", "bigbird"]),
        (["--min-fidelity", "0.999"], ["sdpa_flash", None]),
        (["--max-memory", "4MiB"], ["sdpa_flash", "bigbird"]),
        (["--max-memory", "1.5M"], ["flex", None]),
    ],
)
def test_limits_are_kept(ask, limits, expected):
    assert chosen(ask("--seq-len", "1k", "--json", *limits)) == expected


@pytest.mark.parametrize("option", ["--min-fidelity", "--max-error"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-2"])
def test_a_limit_that_is_no_limit_is_refused(ask, option, value):
    code, out, err = ask("--seq-len", "1k", option, value)
    assert (code, out) == (2, "")
    assert option in err


def test_the_evidence_and_what_cannot_be_told_apart(ask):
    code, out, err = ask("--seq-len", "1k", "--min-fidelity", "0.99")
    assert (code, err) == (0, "")
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0] == "full, fwd, 1k · Example CPU, float32, batch 1, 8 heads of 64"
    assert lines[1].split() == ["exact:", "sdpa_flash:", "4.00", "ms", "±0%,", "2.00", "MiB"]
    assert lines[2] == "within noise of flex"
    assert "approximate: bigbird: 3.00 ms ±0%, 3.00 MiB, fidelity 0.9950, error 0.10" in lines
    assert "→ bigbird if its fidelity is enough (1.3× [1.3, 1.3] the speed of the exact one)" in lines
    assert "not linformer: fidelity 0.82 is below 0.99" in lines


def test_between_lengths_figures_are_interpolated_and_said_to_be(ask):
    _, out, _ = ask("--seq-len", "1448")
    assert "sdpa_flash: 8.00 ms ±0%, 2.83 MiB, interpolated between 1k and 2k" in out
    assert "error 0.70" in out  # the worse of both
    assert "not flex: timed at 1k alone" in out


def test_what_failed_at_this_length_is_no_candidate(ask):
    _, out, _ = ask("--seq-len", "2k")
    assert "not flex: needs 9 GiB" in out


def test_beyond_what_was_measured_nothing_is_made_up(ask):
    code, out, err = ask("--seq-len", "8k")
    assert (code, out) == (3, "")
    assert "expected something timed with length 8k for full, fwd, found 1k, 2k; measure it with: " in err
    assert " --seq-len 8k " in err


@pytest.mark.parametrize(
    ("arguments", "words", "options"),
    [
        (["--seq-len", "4k"], "length 4k for full, fwd, found 1k, 2k", "--seq-len 4k"),
        (["--seq-len", "1k", "--mask", "causal"], "mask causal, found full", "--mask causal"),
        (["--seq-len", "1k", "--mode", "bwd"], "mode bwd, found fwd", "--mode bwd"),
        (["--seq-len", "1k", "--threads", "7"], "threads 7, found 2", "--threads 7"),
        (["--seq-len", "1k", "--dtype", "float16"], "dtype float16, found float32", "--dtype float16"),
        (["--seq-len", "1k", "--heads", "3"], "heads 3, found 8", "--heads 3 --kv-heads 3"),
        (["--seq-len", "1k", "--kv-heads", "2"], "kv heads 2, found 8", "--heads 8 --kv-heads 2"),
        (["--seq-len", "4k", "--mask", "band:9", "--mode", "fwd_bwd"], "mask band:9", "--mask band:9 --mode fwd_bwd"),
    ],
)
def test_what_was_not_measured_is_told_with_the_command_that_does(ask, fake_bench, arguments, words, options):
    records = [timed("naive_sdpa", 16), timed("naive_sdpa", 64, 2048)]
    code, out, err = ask(*arguments, records=records)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert f"expected something timed with {words}" in err
    command = err.partition("measure it with: ")[2]
    assert f" {options} " in command
    for option in ("--mask", "--mode", "--dtype", "--threads", "--batch", "--head-dim", "--inputs"):
        assert f" {option} " in command
    planned = fake_bench(*shlex.split(command)[3:], "--dry-run")
    assert planned.code == 0, planned.err
    (row,) = [line.split() for line in planned.out.splitlines() if line.startswith("naive_sdpa")]
    wanted = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert set(row) >= {wanted[name] for name in ("--seq-len", "--mask", "--mode", "--dtype") if name in wanted}


def test_another_machine_cannot_be_asked_for(ask):
    code, _, err = ask("--seq-len", "1k", "--device-name", "Another CPU")
    assert code == 3
    assert "expected something timed with device name Another CPU, found Example CPU; give runs of that machine" in err


def test_a_kind_that_was_not_measured_breaks_no_limit(ask):
    _, out, _ = ask("--seq-len", "1k", records=[timed("linformer", 1, relative_error=0.6)])
    assert "exact:       no exact attention was measured at this length\n" in out
    _, out, _ = ask("--seq-len", "1k", "--max-memory", "1G", records=[timed("flex", 1, peak_mib=8)])
    assert "approximate: no approximate attention was measured at this length\n" in out


def test_a_limit_of_a_few_bytes_is_told_in_bytes(ask):
    _, out, _ = ask("--seq-len", "1k", "--max-memory", "1")
    assert "not sdpa_flash: takes 2.00 MiB of 1 byte\n" in out


def test_nothing_that_keeps_the_limits_is_told_with_the_reasons(ask):
    code, out, err = ask("--seq-len", "1k", "--max-memory", "1k")
    assert code == 3
    assert "not sdpa_flash: takes 2.00 MiB of" in out
    assert "nothing that was measured keeps these limits" in err


def test_every_machine_has_an_answer_unless_one_is_chosen(ask):
    records = [*FOUND, runs.record("flex", host=runs.GPU, dtype="bfloat16")]
    assert len(json.loads(ask("--seq-len", "1k", "--json", records=records)[1])) == 2
    assert chosen(ask("--seq-len", "1k", "--json", "--dtype", "bfloat16", records=records)) == ["flex", None]
    assert chosen(ask("--seq-len", "1k", "--json", "--device", "cuda", records=records)) == ["flex", None]


def test_an_approximation_that_is_not_surely_faster_is_not_advised(ask):
    code, out, _ = ask("--seq-len", "1k", records=[timed("flex", 3), timed("linformer", 2.95, relative_error=0.5)])
    assert code == 0
    assert "→ flex: no approximation is surely faster" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seq-len", "x"], "--seq-len: expected a length such as 512 or 8k"),
        (["--seq-len", "0"], "at least 1"),
        (["--seq-len", "1k", "--mask", "cusal"], "did you mean 'causal'?"),
        (["--seq-len", "1k", "--mode", "backward"], "'backward' is not one of 'fwd', 'bwd', 'fwd_bwd'"),
        (["--seq-len", "1k", "--device", "cdua"], "did you mean 'cuda'?"),
        (["--seq-len", "1k", "--dtype", "float23"], "did you mean 'float32'?"),
        (["--seq-len", "1k", "--max-memory", "big"], "expected a size such as 2GiB"),
        ([], "Missing option '--seq-len'"),
    ],
)
def test_mistakes_are_one_line(ask, arguments, words):
    code, out, err = ask(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2**31), ("512M", 2**29), ("1.5k", 1536), ("77", 77), ("3 mb", 3 * 2**20)]
)
def test_sizes(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1G", "2XiB", "G"])
def test_sizes_that_are_none(text):
    with pytest.raises(WrongUsageError, match="expected a size"):
        size_bytes(text)
