"""The worker in this process with the real engine, and a few sweeps through real processes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch

from bench.record import Case, Failed, Measured, Settings
from bench.sweep import engine, messages
from bench.sweep.plan import Cell
from bench.sweep.stations import Spent, Station, outcomes
from bench.sweep.worker import Worker, entry, resolved, without_leftovers
from tests.fixtures import sound
from variants import VariantError
from variants._contract import Workload

FAULTS = Path(__file__).parents[2] / "fixtures/faults"
SETTINGS = Settings(threads=1, time_budget_seconds=0.05, timeout_seconds=60)
SMALL = Workload(heads=2, kv_heads=2, query_length=16, key_length=16, head_dim=8)


@dataclass(frozen=True, slots=True)
class Parameters:
    rank: int = 128
    share: float = 0.5
    sharing: str = "kv"
    learned: bool = False


PARAMETRISED = sound.variant("parametrised", parameters=Parameters)


@pytest.fixture
def said():
    return []


@pytest.fixture
def worker(said, monkeypatch):
    monkeypatch.setattr("bench.sweep.worker.pin", lambda threads: None)  # this process serves other tests too
    return Worker(engine, said.append)


# --- parameters -----------------------------------------------------------------------------------------------


def test_parameters_are_typed_and_complete():
    given = {"rank": "64", "share": "0.25", "learned": "true"}
    assert resolved(PARAMETRISED, given).parameters == {"rank": 64, "share": 0.25, "sharing": "kv", "learned": True}
    assert resolved(PARAMETRISED, {}).parameters == {"rank": 128, "share": 0.5, "sharing": "kv", "learned": False}


def test_parameters_that_kept_their_default_are_spelled_out_without_slots_too():
    assert resolved(sound.variant("x"), {"width": 9}).parameters == {"width": 9, "style": "plain"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rnak": 3}, "parameter of parametrised 'rnak' is unknown, .* did you mean 'rank'"),
        ({"rank": "many"}, r"cannot be .*Expected `int`.*\$.rank"),
    ],
)
def test_parameters_that_cannot_be(given, message):
    with pytest.raises(VariantError, match=message):
        resolved(PARAMETRISED, given)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_parameters_that_no_record_can_hold_are_refused(value):
    with pytest.raises(VariantError, match=rf"parametrised: parameter 'share' cannot be {value}, which no record can"):
        resolved(PARAMETRISED, {"share": value})


@pytest.mark.parametrize("value", [10**40, [float("nan")], {"a": float("inf")}, complex(1, 2)])
def test_defaults_that_no_record_can_hold_are_refused(value):
    holder = dataclass(type("Holder", (), {"it": field(default_factory=lambda: value), "__annotations__": {"it": "x"}}))
    with pytest.raises(VariantError, match=r"'mine\.py': x: parameter 'it' cannot be"):
        entry(sound.variant("x", parameters=holder), "mine.py")


def test_a_file_with_such_a_default_is_refused(worker):
    file = str(FAULTS / "endless_default.py")
    refused = worker.answer(messages.Catalogue(files=[file], device="cpu"))
    assert isinstance(refused, messages.Refused)
    assert "endless_default.py': endless_default: parameter 'clip' cannot be inf" in refused.message


def test_a_variant_without_parameters_says_so():
    with pytest.raises(VariantError, match="naive_sdpa has no parameters, got 'rank'"):
        resolved(engine.variant("naive_sdpa"), {"rank": 3})


# --- requests -------------------------------------------------------------------------------------------------


def written(folder, **fields):
    """A variant file that is sound but for ``fields``, each as it is written in Python."""
    changed = ", ".join(f"{name}={text}" for name, text in fields.items())
    file = folder / "mine.py"
    file.write_text(
        "from dataclasses import dataclass, replace\n"
        "from variants._contract import Complexity, Paper\n"
        "from variants.naive_sdpa import VARIANT as RIGHT\n"
        "@dataclass\nclass Open:\n    rank: int\n"
        f"VARIANT = replace(RIGHT, {changed})\n",
        encoding="utf-8",
    )
    return file


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        ("family", "3", "expected family to be text, got 3"),
        ("exact", "'no'", "expected exact to be True or False, got 'no'"),
        ("summary", "None", "expected summary to be text"),
        ("paper", "Paper('it', '2020')", "expected paper to be a Paper of text, a whole number"),
        ("parameters", "Open", "expected parameters to be a dataclass with a default for every field"),
        ("parameters", "dict", "expected parameters to be a dataclass"),
        ("flops", "7", "expected flops to be a function, got 7"),
        ("complexity", "Complexity('2', 1)", "expected complexity to be a Complexity of two numbers"),
        ("complexity", "2", "expected complexity to be"),
        ("claims", "('fast',)", "expected claims to be a tuple of Claim"),
        ("traps", "'mind the gap'", "expected traps to be a tuple of texts"),
        ("uses", "{'keys'}", "expected uses to be a set of query, key, value"),
        ("route", "3", "expected route to be a function or None"),
        ("causal_leak", "[]", "expected causal_leak to be one of none, routing, got []"),
        ("kernels", "{'cpu': 'mm'}", "expected kernels to be a mapping from device types to Kernels"),
        ("stochastic", "1", "expected stochastic to be True or False"),
        ("package", "3", "expected package to be text or None"),
    ],
)
def test_a_field_of_a_wrong_type_is_named_with_its_file(worker, tmp_path, field, text, expected):
    refused = worker.answer(
        messages.Catalogue(files=[str(written(tmp_path, name="'mine'", **{field: text}))], device="cpu")
    )
    assert isinstance(refused, messages.Refused)
    assert "mine.py: variant 'mine': " in refused.message
    assert expected in refused.message


@pytest.mark.parametrize("name", ["bad name", "a,b", "x\ny", "", "a*", "x\n", 3])
def test_a_name_that_cannot_be_chosen_or_printed_is_refused(worker, tmp_path, name):
    refused = worker.answer(messages.Catalogue(files=[str(written(tmp_path, name=repr(name)))], device="cpu"))
    assert isinstance(refused, messages.Refused)
    expected = f"mine.py: expected a name of letters, digits, '_', '-' and '.', got {name!r}; rename the variant"
    assert refused.message.endswith(expected)


def test_names_may_have_letters_of_every_language(worker, tmp_path):
    catalogued = worker.answer(
        messages.Catalogue(files=[str(written(tmp_path, name="'αttention-2.b_1'"))], device="cpu")
    )
    assert catalogued.entries[-1].name == "αttention-2.b_1"


def test_the_catalogue_holds_every_variant_and_those_of_files(worker, said):
    catalogued = worker.answer(messages.Catalogue(files=[str(FAULTS / "prints.py")], device="auto"))
    entries = {one.name: one for one in catalogued.entries}
    assert {"naive_sdpa", "linformer", "xformers", "prints"} <= set(entries)
    assert entries["prints"].file == str(FAULTS / "prints.py")
    assert entries["linformer"].file is None
    assert entries["linformer"].parameters["rank"] == engine.variant("linformer").parameters().rank
    assert catalogued.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert any("prints.py" in one.stage for one in said)


def test_a_file_with_the_name_of_another_variant_is_refused(worker, tmp_path):
    (tmp_path / "double.py").write_text("from variants.naive_sdpa import VARIANT\n")
    refused = worker.answer(messages.Catalogue(files=[str(tmp_path / "double.py")], device="cpu"))
    assert isinstance(refused, messages.Refused)
    assert "'naive_sdpa'" in refused.message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_no_cuda_device_is_a_refusal_with_a_remedy(worker, device):
    refused = worker.answer(messages.Catalogue(files=[], device=device))
    assert refused.message == f"--device {device}: found no CUDA device here; use --device cpu or another index"


def test_an_entry_tells_what_the_report_needs():
    told = entry(engine.variant("linformer"))
    assert (told.about.family, told.about.exact, told.about.time_exponent) == ("low_rank", False, 1)
    assert "2006.04768" in told.about.paper
    assert entry(sound.variant("x")).about.paper is None


def test_a_survey_asks_for_obstacles_and_work(worker):
    cases = [
        Case(variant="linformer", workload=SMALL, parameters={}),
        Case(variant="linformer", workload=causal(SMALL)),
    ]
    able, unable = worker.answer(messages.Survey(cases=cases, file=None)).prospects
    assert able.reasons == []
    assert able.issued_flops > 0
    assert able.least_traffic_bytes == 4 * 2 * 16 * 8 * 4
    assert unable.reasons
    assert unable.issued_flops is None


def causal(workload):
    return Workload(**{name: getattr(workload, name) for name in workload.__slots__} | {"mask": "causal"})


def test_obstacles_that_raise_are_no_reasons(worker, tmp_path):
    (tmp_path / "x.py").write_text(
        "from tests.fixtures.sound import variant\nVARIANT = variant('x', obstacles=lambda *_: 1 / 0)\n"
    )
    cases = [Case(variant="x", workload=SMALL)]
    assert worker.answer(messages.Survey(cases=cases, file=str(tmp_path / "x.py"))).prospects == [messages.Prospect()]


def test_a_probe_tells_host_source_and_ceilings(worker):
    probed = worker.answer(messages.Probe(device="cpu", dtypes=["float32"], settings=SETTINGS))
    assert probed.host.ceilings["matmul_flops_per_second:float32"] > 0
    assert probed.host.ceilings["copy_bytes_per_second"] > 0
    assert "torch" in probed.source.versions


def test_measuring_tells_stages_and_where_time_went(worker, said):
    worker.answer(messages.Prepare(variant="naive_sdpa", file=None, device="cpu", settings=SETTINGS))
    done = worker.answer(messages.Measure(case=Case(variant="naive_sdpa", workload=SMALL)))
    assert isinstance(done.outcome, Measured)
    assert done.outcome.seconds
    assert not done.retire
    stages = [one.stage for one in said]
    assert stages[-1] == "time"
    assert set(stages) - {"start"} <= set(done.seconds)


def test_a_failure_retires_the_worker(worker):
    worker.answer(messages.Prepare(variant="raises", file=str(FAULTS / "raises.py"), device="cpu", settings=SETTINGS))
    faulty = Workload(query_length=sound.FAULTY, key_length=sound.FAULTY)
    done = worker.answer(messages.Measure(case=Case(variant="raises", workload=faulty)))
    assert isinstance(done.outcome, Failed)
    assert done.retire


def test_leftovers_are_judged_only_where_something_was_measured():
    failed = Failed(stage="build", message="no")
    process = psutil.Process()
    assert without_leftovers(failed, frozenset([process]), "time") == (failed, True)
    assert without_leftovers(failed, frozenset(), "time") == (failed, False)
    assert without_leftovers(failed, frozenset([threading.current_thread()]), "time") == (failed, True)


# --- through processes ----------------------------------------------------------------------------------------


def swept(variants, lengths, files=(), **changes):
    cells = [
        Cell(Case(variant=variant, workload=Workload(query_length=length, key_length=length)), 0)
        for variant in variants
        for length in lengths
    ]
    station = Station(
        device="cpu", settings=SETTINGS, files={name: str(FAULTS / f"{name}.py") for name in files}, **changes
    )
    found = outcomes(cells, station, seed="c", spent=Spent())
    return {(cell.case.variant, cell.case.workload.query_length): outcome for cell, outcome in found}


def test_changed_torch_state_fails_and_the_next_case_is_unaffected():
    found = swept(["sets_state", "sdpa_math"], [sound.FAULTY, 32], files=["sets_state"])
    assert list(found)[:2] == [("sets_state", sound.FAULTY), ("sets_state", 32)]  # it ran first
    outcome = found["sets_state", sound.FAULTY]
    assert isinstance(outcome, Failed)
    for change in ("threads from 1 to 2", "default dtype", "deterministic algorithms", "seed"):
        assert change in outcome.message
    for variant in ("sets_state", "sdpa_math"):
        assert isinstance(found[variant, 32], Measured)
        assert found[variant, 32].own_error < 1e-5


def test_the_progress_bar_of_the_compiler_leaves_no_thread_behind():
    engine.prepare("cpu", Settings(threads=torch.get_num_threads()))
    before = set(threading.enumerate())
    with torch.hub.tqdm(total=1, disable=True):
        assert set(threading.enumerate()) == before
