"""Made-up runs for the tests of the read side. The figures follow a simple model; no machine produced them.

``python -m tests.bench.runs`` writes those under ``tests/fixtures/runs`` anew.
"""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import msgspec

from bench.record import (
    About,
    Case,
    Crashed,
    Failed,
    FellBack,
    Fidelity,
    Host,
    Incorrect,
    Measured,
    OutOfMemory,
    Record,
    Settings,
    Source,
    Timeout,
    Unsupported,
    encode,
)
from variants._contract import Claim, Workload

FOLDER = Path(__file__).parents[1] / "fixtures/runs"

EXACT = About(family="exact", exact=True, time_exponent=2, memory_exponent=2, summary="softmax(QKᵀ/√d) V")
LINEAR = About(family="exact", exact=True, time_exponent=2, memory_exponent=1, summary="Without the score matrix.")


FASTER = Claim(
    statement="twice as fast as standard attention",
    metric="speedup",
    value=2,
    over="naive_sdpa",
    source="A paper (2022)",
)
LEANER = Claim(
    statement="no memory at all",
    metric="memory_saving",
    value=1e6,
    over="naive_sdpa",
    source="A poster",
)


def approximate(family, time=1.0, memory=1.0, leak="none"):
    return About(family=family, exact=False, time_exponent=time, memory_exponent=memory, causal_leak=leak)


ABOUT = {
    "naive_sdpa": EXACT,
    "chunked_mha": LINEAR,
    "sdpa_math": EXACT,
    "sdpa_flash": msgspec.structs.replace(LINEAR, claims=[FASTER, LEANER]),
    "sdpa_efficient": LINEAR,
    "sdpa_cudnn": LINEAR,
    "sdpa_auto": LINEAR,
    "flex": LINEAR,
    "xformers": LINEAR,
    "linformer": approximate("low_rank"),
    "linformer_pytorch": approximate("low_rank"),
    "reformer_lsh": approximate("hashing", leak="routing"),
    "reformer_pytorch": approximate("hashing", leak="routing"),
    "bigbird": approximate("sparse"),
    "flex_bigbird": approximate("sparse"),
    "uniform": approximate("floor"),
}

# Milliseconds and MiB at 2048 tokens in a forward, exponents of both, and the relative error.
MODEL = {
    "naive_sdpa": (323, 256, 1.98, 2.0, 0),
    "chunked_mha": (222, 20, 1.9, 1.0, 0),
    "sdpa_math": (338, 292, 1.95, 2.0, 0),
    "sdpa_flash": (67, 4.6, 1.97, 1.0, 0),
    "sdpa_auto": (66.8, 4.6, 1.97, 1.0, 0),
    "flex": (75, 4.4, 1.9, 1.0, 0),
    "linformer": (29, 24, 1.0, 1.0, 0.74),
    "linformer_pytorch": (34, 28, 1.02, 1.0, 0.76),
    "reformer_lsh": (240, 205, 1.05, 1.0, 1.31),
    "reformer_pytorch": (553, 394, 1.08, 1.0, 1.43),
    "bigbird": (92, 40, 1.01, 1.0, 1.28),
    "flex_bigbird": (70, 4.3, 1.0, 1.0, 1.28),
    "uniform": (0.6, 4, 1.0, 1.0, 0.81),
}
MODES = {"fwd": (1.0, 1.0), "bwd": (2.1, 1.5), "fwd_bwd": (3.1, 1.6)}

CPU = Host(
    fingerprint="c0ffee00c0ffee00",
    device_name="Example CPU",
    cpu="Example CPU",
    cores=2,
    memory_gib=8,
    system="Linux",
    ceilings={"matmul_flops_per_second:float32": 9.1e10, "copy_bytes_per_second": 1.6e10},
)
GPU = Host(
    fingerprint="badc0de0badc0de0",
    device_name="Example GPU",
    cpu="Example CPU",
    cores=16,
    memory_gib=128,
    gpus=["Example GPU"],
    gpu_memory_bytes=80 * 1024**3,
    system="Linux",
)
SETTINGS = Settings(threads=2, time_budget_seconds=2.0, timeout_seconds=60.0)
SOURCE = Source(
    git="0123456789abcdef0123456789abcdef01234567",
    dirty=False,
    versions={"python": "3.11.9", "torch": "2.13.0", "numpy": "2.4.6", "attention-bench": "0.1.0"},
)
COMMAND = "python -m bench run --suite quick --out results/runs/example.jsonl"
CONDITIONS = {"load_1min": 0.42, "steal_share": 0.0, "others_busy_cores": 0.03, "cpu_mhz": 2900}


def measured(seconds=(0.001,) * 8, *, peak_mib=1.0, relative_error=1e-7, **changes):
    """A measured outcome in which everything else is plausible."""
    known = {
        "seconds": list(seconds),
        "timer": "perf_counter, blocks of 10 ms",
        "peak_bytes": None if peak_mib is None else round(peak_mib * 2**20),
        "setup_seconds": 0.01,
        "own_error": 2.0e-7,
        "tolerance": 1.5e-5,
        "fidelity": Fidelity(relative_error=relative_error, cosine=1 - relative_error**2 / 2, mass_recall=1.0),
        "useful_flops": 1_000_000_000,
        "issued_flops": 1_000_000_000,
        "roofline_fraction": 0.4,
        "bound": "compute",
        "dispatched": ["aten::bmm", "aten::softmax"],
        "conditions": CONDITIONS,
    }
    return Measured(**{**known, **changes})


def record(
    variant="naive_sdpa",
    outcome=None,
    *,
    length=1024,
    process=0,
    run_id="example",
    host=CPU,
    settings=SETTINGS,
    source=SOURCE,
    about=None,
    parameters=None,
    command=COMMAND,
    at="2024-03-01T12:00:00+00:00",
    **workload,
):
    """One line; ``workload`` changes the dimensions of the problem."""
    shape = {"query_length": length, "key_length": length, "device": "cuda" if host.gpus else "cpu"}
    return Record(
        run_id=run_id,
        case=Case(variant=variant, parameters=parameters or {}, workload=Workload(**(shape | workload))),
        outcome=measured() if outcome is None else outcome,
        process=process,
        about=about or ABOUT.get(variant, approximate("kernel")),
        settings=settings,
        host=host,
        source=source,
        command=command,
        at=at,
    )


def modelled(variant, *, length, mask="full", mode="fwd", process=0, samples=12, speed=1.0):
    """What the model says of one case, with noise that is the same every time."""
    milliseconds, mebibytes, time_exponent, memory_exponent, relative_error = MODEL[variant]
    draw = random.Random(f"{variant} {length} {mask} {mode} {process}")  # noqa: S311  # no secret
    share = 0.55 if mask == "causal" and variant in ("sdpa_flash", "sdpa_auto", "flex") else 1.0
    base = milliseconds * 1e-3 * share * MODES[mode][0] * (length / 2048) ** time_exponent
    middle = (base + 4e-5) / speed * (1 + draw.gauss(0, 0.01))
    return measured(
        [float(f"{middle * (1 + draw.expovariate(150)):.5g}") for _ in range(samples)],
        peak_mib=mebibytes * MODES[mode][1] * (length / 2048) ** memory_exponent,
        relative_error=relative_error or 3.1e-7,
        setup_seconds=8.25 if variant.startswith("flex") else 0.0125,
        compile_seconds=8.0 if variant.startswith("flex") else None,
        dispatched=[f"aten::{variant}"],
        first_call_seconds=0.0075,
        output_bytes=length * 2048,
        saved_bytes=None if mode == "fwd" else length * 512,
        workspace_bytes=length * 1024,
        attention_map=attention_map(variant, mask) if (length, mode) == (1024, "fwd") else None,
    )


def attention_map(variant, mask):
    """Something that shows the mask, and whether anything is left out."""
    sparse = ABOUT[variant].family == "sparse"
    return [
        "".join(
            "0" if (mask == "causal" and key > query) or (sparse and (query + key) % 3 == 0) else "z"
            for key in range(24)
        )
        for query in range(24)
    ]


def reasons(variant, *, mask, mode, device="cpu"):
    """Why a variant of the example cannot run."""
    found = []
    if device == "cpu":
        if variant in ("sdpa_efficient", "sdpa_cudnn"):
            found.append(f"PyTorch has no {variant.removeprefix('sdpa_')} kernel on a CPU")
        if variant == "xformers":
            found.append("xformers needs CUDA")
        if variant.startswith("flex") and mode != "fwd":
            found.append("FlexAttention has no backward on a CPU")
    if mask == "causal" and variant.startswith(("linformer", "bigbird")):
        found.append(f"causal: {variant.partition('_')[0]} mixes all keys")
    return found


def sweep(
    variants=tuple(ABOUT),
    *,
    lengths=(256, 512, 1024, 2048),
    masks=("full", "causal"),
    modes=("fwd", "fwd_bwd"),
    processes=1,
    samples=12,
    speed=1.0,
    **common,
):
    """A whole run of the model."""
    records = []
    for process, variant, mode, mask, length in product(range(processes), variants, modes, masks, lengths):
        why = reasons(variant, mask=mask, mode=mode, device="cuda" if common.get("host") is GPU else "cpu")
        if why or variant not in MODEL:
            outcome = Unsupported(reasons=why or ["not on this machine"])
        else:
            outcome = modelled(
                variant, length=length, mask=mask, mode=mode, process=process, samples=samples, speed=speed
            )
        records.append(record(variant, outcome, length=length, mask=mask, mode=mode, process=process, **common))
    return records


def odd():
    """Every status, one length, names that need care."""
    outcomes = [
        ("naive_sdpa", measured([0.02, 0.021, 0.022])),
        (
            "sdpa_flash",
            measured([0.01] * 7, settled=False, notes=["the median is known to ±3% after 7 samples in 2 s"]),
        ),
        ("注意力", measured([0.004] * 8, relative_error=0.5)),
        ("a|b*c_<d>_$e$", measured([0.005] * 8, relative_error=0.25, notes=["7 of 30 samples dropped: *preempted*"])),
        ("xformers", Unsupported(reasons=["xformers needs CUDA", "it is not installed"])),
        ("chunked_mha", OutOfMemory(stage="predicted", message="needs 12.5 GiB of 8 GiB", predicted_bytes=13421772800)),
        ("reformer_lsh", Timeout(stage="time", message="no answer within 60 s")),
        ("reformer_pytorch", Crashed(stage="check", message="the worker died of signal 11")),
        ("linformer", Failed(stage="build", message="RuntimeError: mat1 and mat2 | shapes\ncannot be multiplied")),
        ("bigbird", Incorrect(stage="check", message="output off by 0.3", own_error=0.3, tolerance=1e-5)),
        ("flex", FellBack(stage="check", message="expected nothing like 'aten::bmm' to run", dispatched=["aten::bmm"])),
    ]
    return [record(variant, outcome, mask="causal+softcap:30") for variant, outcome in outcomes]


def damaged(lines):
    """Lines of a file that was not well treated: one cut, one of a kind to come, one empty."""
    later = lines[0].replace(b'"kind":"operator"', b'"kind":"module"')
    return [*lines, b"", later, lines[0][:100]]


RUNS = {
    "cpu": lambda: [encode(record) for record in sweep(run_id="cpu")],
    "processes": lambda: [
        encode(record)
        for record in sweep(
            ("naive_sdpa", "sdpa_flash", "linformer", "uniform"),
            masks=("full",),
            modes=("fwd",),
            processes=3,
            run_id="processes",
        )
    ],
    "gpu": lambda: [
        encode(record)
        for record in sweep(
            ("naive_sdpa", "sdpa_flash", "flex", "bigbird"),
            masks=("causal",),
            host=GPU,
            dtype="bfloat16",
            speed=200,
            run_id="gpu",
        )
    ],
    "odd": lambda: damaged([encode(record) for record in odd()]),
}


def write():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, lines in RUNS.items():
        (FOLDER / f"{name}.jsonl").write_bytes(b"\n".join(lines()) + b"\n")


if __name__ == "__main__":
    write()
