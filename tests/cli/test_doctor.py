"""The doctor names what is wrong, and says what to do about it."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import variants
from bench.cli import main
from bench.cli.doctor import command
from bench.machine import doctor
from bench.machine.doctor import Finding, NoiseFloor
from bench.measure import cuda
from bench.sweep import noise, supervisor
from bench.sweep.noise import noise_floor
from tests.bench.attentions import small, variant
from tests.bench.fake_cuda import FakeNvml

NOTHING = Path("/nonexistent")


def state(finding):
    return finding.state, bool(finding.advice)


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (doctor.busy(0.05), "ok"),
        (doctor.busy(0.2), "warn"),
        (doctor.busy(0.9), "unfit"),
        (doctor.loaded(0.4, 2), "ok"),
        (doctor.loaded(1.2, 2), "warn"),
        (doctor.loaded(2.0, 2), "unfit"),
        (doctor.steal(0.001), "ok"),
        (doctor.steal(0.01), "warn"),
        (doctor.steal(0.05), "unfit"),
        (doctor.throttling(3, 3), "ok"),
        (doctor.throttling(3, 5), "unfit"),
        (doctor.thermal([(50, 90), (70, None)]), "ok"),
        (doctor.thermal([(50, 90), (91, 90)]), "unfit"),
        (doctor.pinning({}, 4, 8), "ok"),
        (doctor.pinning({"OMP_NUM_THREADS": "4"}, 4, 8), "ok"),
        (doctor.pinning({"OMP_NUM_THREADS": "8"}, 4, 8), "unfit"),
        (doctor.noisy(NoiseFloor([1.0, 1.001, 1.002])), "ok"),
        (doctor.noisy(NoiseFloor([1.0, 1.03, 1.06])), "warn"),
        (doctor.noisy(NoiseFloor([1.0, 1.2, 1.4])), "unfit"),
    ],
    ids=lambda value: value.name if isinstance(value, Finding) else value,
)
def test_what_is_found_is_graded_with_advice(finding, expected):
    assert finding.state == expected
    assert bool(finding.advice) == (expected != "ok")


@pytest.mark.parametrize(
    "finding",
    [
        doctor.loaded(None, 2),
        doctor.governor(NOTHING),
        doctor.throttling(None, None),
        doctor.thermal([]),
        doctor.noisy(None),
    ],
    ids=lambda finding: finding.name,
)
def test_what_nobody_tells_is_unknown_and_no_reason_against_measuring(finding):
    assert finding.state == "unknown"
    assert doctor.is_fit([finding])


def test_the_governor_of_all_cores_counts(tmp_path):
    for core, name in enumerate(["performance", "powersave"]):
        file = tmp_path / f"devices/system/cpu/cpu{core}/cpufreq/scaling_governor"
        file.parent.mkdir(parents=True)
        file.write_text(f"{name}\n")
    assert doctor.governor(tmp_path).value == "performance, powersave"
    assert state(doctor.governor(tmp_path)) == ("warn", True)
    file.write_text("performance\n")
    assert state(doctor.governor(tmp_path)) == ("ok", False)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [("max 100000", "none", "ok"), ("400000 100000", "4 cores", "ok"), ("150000 100000", "1.5 of 4 cores", "warn")],
)
def test_a_quota_below_the_cores_is_told(tmp_path, text, value, expected):
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "fs/cgroup/cpu.max").write_text(text)
    found = doctor.quota(tmp_path, 4)
    assert (found.value, found.state) == (value, expected)
    assert doctor.quota(NOTHING, 4).value == "none"


def test_throttling_is_counted_over_cores_and_quota(tmp_path):
    assert doctor.throttle_counts(tmp_path) is None
    for core in range(2):
        file = tmp_path / f"devices/system/cpu/cpu{core}/thermal_throttle/core_throttle_count"
        file.parent.mkdir(parents=True)
        file.write_text("3\n")
    assert doctor.throttle_counts(tmp_path) == 6
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "fs/cgroup/cpu.stat").write_text("nr_periods 10\nnr_throttled 4\nthrottled_usec 99\n")
    assert doctor.throttle_counts(tmp_path) == 10


def test_a_quiet_gpu_is_fit():
    found = doctor.gpu(FakeNvml(0, processes=[7]), "handle", own_process=7)
    assert [finding.state for finding in found] == ["ok"] * len(found)
    assert {finding.name: finding.value for finding in found} == {
        "GPU processes": "0 others",
        "GPU in use": "0%",
        "GPU throttling": "none",
        "GPU temperature": "40 °C, slows down at 87 °C",
        "GPU clock": "1700 of 1980 MHz",
        "GPU driver": "570.00",
    }


@pytest.mark.parametrize(
    ("nvml", "name"),
    [
        (FakeNvml(0, processes=[7, 8]), "GPU processes"),
        (FakeNvml(0, used_percent=50), "GPU in use"),
        (FakeNvml(0x40), "GPU throttling"),
        (FakeNvml(0, celsius=90), "GPU temperature"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_disturbed_gpu_is_not(nvml, name):
    (unfit,) = [finding for finding in doctor.gpu(nvml, "handle", own_process=7) if finding.state == "unfit"]
    assert unfit.name == name
    assert unfit.advice


def test_a_gpu_that_the_driver_does_not_know_is_no_reason_against_measuring():
    found = doctor.gpu(FakeNvml(0), None)
    assert [finding.state for finding in found] == ["unknown"]


def test_a_power_cap_is_told_and_no_fault():
    throttling = doctor.gpu(FakeNvml(0x04), "handle")[2]
    assert (throttling.value, throttling.state) == ("sw_power_cap", "ok")


def test_listening_looks_at_the_real_machine(monkeypatch):
    monkeypatch.setattr(doctor, "_LISTENING_SECONDS", 0.05)
    names = [finding.name for finding in doctor.listen()]
    assert names == [
        "other work",
        "load",
        "steal",
        "governor",
        "threads",
        "quota",
        "CPU throttling",
        "CPU temperature",
    ]


# --- noise floor ---------------------------------------------------------------------------------------------------


def test_the_noise_floor_is_between_processes():
    floor = NoiseFloor([1.0, 1.1, 1.21])
    assert floor.deviation == pytest.approx(0.0953, abs=1e-4)  # of the logarithms: ln 1.1
    assert floor.largest_difference == pytest.approx(0.21)


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """Workers with made-up figures; gives the trace of theirs, a line for each case."""
    monkeypatch.setattr(supervisor, "ENGINE", "tests.fixtures.fake_engine")
    monkeypatch.setattr(noise, "VARIANT", "sound")
    monkeypatch.setenv("FAKE_TRACE", str(tmp_path / "trace"))
    return tmp_path / "trace"


def test_each_process_of_the_noise_floor_is_a_worker_of_its_own(faked):
    floor = noise_floor(device="cpu", threads=1, processes=3)
    assert floor.medians == [noise.LENGTH * 1e-6] * 3
    caches = faked.read_text().split()
    assert len(set(caches)) == len(caches) == 3


@pytest.mark.parametrize(("processes", "measured"), [(0, 0), (1, 1), (9, 3)])
def test_no_process_starts_after_the_deadline(faked, processes, measured):
    times = iter([0.0, 15.0, 30.0, 45.0])
    floor = noise_floor(device="cpu", threads=1, processes=processes, now=lambda: next(times))
    assert (0 if floor is None else len(floor.medians)) == (measured if measured > 1 else 0)
    assert len(faked.read_text().split() if faked.exists() else []) == measured


def test_a_process_that_measures_nothing_counts_for_nothing(faked, monkeypatch):
    monkeypatch.setattr(noise, "VARIANT", "nowhere")
    assert noise_floor(device="cpu", threads=1, processes=2) is None


def test_the_noise_floor_is_that_of_a_sweep(monkeypatch):
    """Its worker is the sweep's: with its environment, pinned, and with the real engine."""
    from bench.sweep.stations import Station

    seen, real = [], Station.worker

    def worker(self):
        seen.append(self)
        return real(self)

    monkeypatch.setattr(Station, "worker", worker)
    monkeypatch.setattr(noise, "PROCESS_SECONDS", 0.05)
    monkeypatch.setattr(noise, "_TIMEOUT_SECONDS", 200.0)
    floor = noise_floor(device="cpu", threads=1, processes=2)
    assert all(0 < seconds < 1 for seconds in floor.medians)
    assert [station.settings.threads for station in seen] == [1, 1]


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def listening(monkeypatch):
    """Findings of the machine, chosen by the test."""
    findings = [Finding("load", "0.1 on 2 cores")]
    monkeypatch.setattr(doctor, "listen", lambda: list(findings))
    monkeypatch.setattr(variants, "find", lambda: {"it": variant()})
    return findings


def asked(*arguments):
    return CliRunner().invoke(command, ["--processes", "0", *arguments], standalone_mode=False)


def test_a_person_reads_a_table(listening, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    listening.append(Finding("steal", "9.0%", "unfit", "use a machine with cores of its own"))
    result = asked()
    assert result.return_value == 0
    assert result.exception is None
    text = " ".join(result.output.split())
    assert "steal 9.0% unfit use a machine with cores of its own" in text
    assert "noise floor not measured unknown" in text
    assert "can run here: it" in text
    assert f"torch {metadata.version('torch')}" in text
    assert "not fit to measure" in text
    assert "\x1b" not in result.output


def test_strict_is_an_exit_code(listening):
    assert asked("--strict").return_value == 0
    listening.append(Finding("heat", "much", "unfit", "cool it"))
    assert asked("--strict").return_value == 1
    assert asked().return_value == 0


def test_a_program_reads_json(listening):
    listening.append(Finding("heat", "much", "unfit", "cool it"))
    result = asked("--json")
    told = json.loads(result.output)
    assert told["fit"] is False
    assert told["findings"][1] == {"name": "heat", "value": "much", "state": "unfit", "advice": "cool it"}
    assert told["device"] in ("cpu", "cuda")
    assert told["noise_medians_seconds"] is None
    assert told["source"]["versions"]["torch"] == metadata.version("torch")
    assert told["host"]["fingerprint"]
    assert {"name", "obstacles"} == set(told["variants"][0])


@pytest.mark.usefixtures("listening")
def test_the_noise_floor_is_measured_as_asked(monkeypatch):
    seen = {}

    def floor(**options):
        seen.update(options)
        return NoiseFloor([1.0, 1.5])

    monkeypatch.setattr(noise, "noise_floor", floor)
    result = CliRunner().invoke(
        command, ["--processes", "4", "--threads", "1", "--device", "cpu"], standalone_mode=False
    )
    assert seen == {"device": "cpu", "threads": 1, "processes": 4}
    assert "at most 50.0%, of 2" in " ".join(result.output.split())


@pytest.mark.usefixtures("listening")
def test_a_gpu_is_looked_at_where_it_is_the_device(monkeypatch):
    from bench.machine import host
    from bench.record import Host

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(host, "describe_host", lambda device: Host(fingerprint="f", device_name=f"the {device}"))
    monkeypatch.setattr(cuda, "nvml", lambda: FakeNvml(0x40))
    monkeypatch.setattr(cuda, "nvml_handle", lambda *_: "handle")
    told = json.loads(asked("--json").output)
    assert told["device"] == "cuda"
    assert {
        "name": "GPU throttling",
        "value": "hw_thermal_slowdown",
        "state": "unfit",
        "advice": told["findings"][3]["advice"],
    } in told["findings"]
    monkeypatch.setattr(cuda, "nvml", lambda: None)
    assert json.loads(asked("--json").output)["fit"]


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "expected a device of auto, cpu or cuda, got 'gpu'"), ("cuda", "no CUDA device is available here")],
)
def test_a_device_that_is_not_there_is_wrong_usage(monkeypatch, capsys, device, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--device", device])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_what_cannot_run_has_its_reasons():
    def broken(workload, parameters):
        raise KeyError(workload.device)

    cannot = variant(name="other", obstacles=lambda workload, parameters: [f"not on {workload.device}"])
    found = doctor.runnable([variant(), cannot, variant(name="broken", obstacles=broken)], small())
    assert [(item.name, item.obstacles) for item in found] == [
        ("it", ()),
        ("other", ("not on cpu",)),
        ("broken", ("asking for its obstacles raised KeyError: 'cpu'",)),
    ]
