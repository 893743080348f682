"""The machine is told by its hardware, the code by its revision."""

from __future__ import annotations

import getpass
import platform
import socket
import subprocess
from importlib import metadata
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import torch

from bench.machine import host
from bench.machine.host import describe_host, describe_source, parse_cpuinfo
from bench.measure import conditions

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9B14
stepping\t: 1
microcode\t: 0x1000
cpu MHz\t\t: {mhz}
flags\t\t: fpu sse2 avx2

processor\t: 1
model name\t: another
"""

ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""


def test_an_x86_processor():
    assert parse_cpuinfo(X86.format(mhz=2600)) == {
        "name": "AMD EPYC 9B14",
        "identity": "AuthenticAMD 25 17 1",
        "flags": "avx2 fpu sse2",
    }


def test_an_arm_processor():
    found = parse_cpuinfo(ARM)
    assert found == {"name": platform.machine(), "identity": "0x41 0xd0c 0x3 1", "flags": "asimd fp"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine whose parts can be changed one by one."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(X86.format(mhz=2600))
    monkeypatch.setattr(host, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(host, "usable_cores", lambda: 4)
    gpus = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: gpus[index if isinstance(index, int) else 0])
    memory = SimpleNamespace(total=64 * 2**30 + 1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    return SimpleNamespace(cpuinfo=cpuinfo, gpus=gpus, memory=memory, patch=monkeypatch)


def test_the_fingerprint_is_of_hardware_alone(machine):
    before = describe_host("cpu").fingerprint
    machine.cpuinfo.write_text(X86.format(mhz=3900).replace("0x1000", "0x2000"))
    machine.memory.total -= 50 * 2**20
    machine.patch.setattr(torch, "__version__", "9.9")
    machine.patch.setattr(platform, "release", lambda: "another kernel")
    assert describe_host("cpu").fingerprint == before


@pytest.mark.parametrize("part", ["stepping", "flags", "cores", "memory", "gpu"])
def test_another_part_is_another_fingerprint(machine, part):
    before = describe_host("cpu").fingerprint
    match part:
        case "stepping":
            machine.cpuinfo.write_text(X86.replace("stepping\t: 1", "stepping\t: 2"))
        case "flags":
            machine.cpuinfo.write_text(X86.replace("avx2", "avx512f"))
        case "cores":
            machine.patch.setattr(host, "usable_cores", lambda: 5)
        case "memory":
            machine.memory.total *= 2
        case "gpu":
            machine.gpus.append("NVIDIA A100")
    assert describe_host("cpu").fingerprint != before


def test_a_gpu_gives_the_name_where_it_is_the_device(machine):
    machine.gpus += ["NVIDIA H100", "NVIDIA H100"]
    machine.patch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80))
    found = describe_host("cuda")
    assert (found.device_name, found.gpu_memory_bytes) == ("NVIDIA H100", 80)
    assert found.gpus == ["NVIDIA H100", "NVIDIA H100"]
    assert found.fingerprint == describe_host("cpu").fingerprint
    assert describe_host("cpu").device_name == "AMD EPYC 9B14"
    assert describe_host("cpu").gpu_memory_bytes is None


def test_a_system_without_cpuinfo_is_told_by_its_processor(machine, tmp_path):
    machine.patch.setattr(host, "_CPUINFO", tmp_path / "missing")
    machine.patch.setattr(platform, "processor", lambda: "Apple M9")
    assert describe_host("cpu").cpu == "Apple M9"


def test_neither_user_nor_host_nor_path_is_told():
    told = msgspec.json.encode(describe_host("cpu")).decode() + msgspec.json.encode(describe_source()).decode()
    for secret in (getpass.getuser(), socket.gethostname(), platform.release()):
        assert secret not in told
    assert "/" not in told


# --- the code ------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True)  # noqa: S607

    for folder in ("bench", "variants"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    return tmp_path


def test_a_clean_tree_has_a_revision(repository):
    revision, dirty = host._revision(repository)
    assert len(revision) == 40
    assert dirty is False
    (repository / "report.md").write_text("what a run leaves behind is no change of the code")
    assert host._revision(repository) == (revision, False)


@pytest.mark.parametrize("name", ["bench/__init__.py", "variants/new.py"])
def test_changed_and_new_code_is_dirty(repository, name):
    (repository / name).write_text("x = 1")
    assert host._revision(repository)[1] is True


def test_code_that_lies_in_a_repository_of_others_has_no_revision(repository):
    site = repository / "venv" / "site-packages"
    (site / "bench").mkdir(parents=True)
    (site / "bench" / "__init__.py").write_text("")
    assert host._revision(site) == (None, None)


def test_without_git_there_is_no_revision(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert host._revision(repository) == (None, None)


def test_versions_are_those_of_what_is_installed(monkeypatch):
    versions = host.library_versions()
    assert versions["torch"] == metadata.version("torch")
    assert versions["python"] == platform.python_version()
    assert "cuda" in versions or torch.version.cuda is None
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91000)
    monkeypatch.setattr(host, "_LIBRARIES", ("torch", "no-such-library"))
    assert host.library_versions() == {
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "cuda": "13.0",
        "cudnn": "91000",
    }


# --- conditions ----------------------------------------------------------------------------------------------------


class Times(SimpleNamespace):
    def _asdict(self):
        return vars(self)


def test_conditions_are_shares_of_the_time_between(monkeypatch):
    times = Times(user=100.0, system=50.0, idle=1000.0, iowait=10.0, steal=5.0, guest=30.0)
    now, own = [0.0], [1.0]
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(**vars(times)))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(conditions, "monotonic", lambda: now[0])
    monkeypatch.setattr(conditions, "process_time", lambda: own[0])
    watch = conditions.Watch.start()
    now[0], own[0] = 10.0, 11.0  # ten seconds, all of them our own on one core
    times.user += 12  # so others have been busy for 2 + 3 seconds
    times.system += 3
    times.guest += 7  # is in the user's time already
    times.steal += 4
    times.idle += 21
    found = watch.report()
    assert found["steal_share"] == pytest.approx(4 / 40)
    assert found["others_busy_cores"] == pytest.approx(0.5)


def test_what_the_system_does_not_tell_is_none(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)
    monkeypatch.delattr(conditions.os, "getloadavg")
    assert conditions.load() is None
    assert conditions.cpu_mhz() is None

    def refused():
        raise NotImplementedError

    monkeypatch.setattr(psutil, "cpu_freq", refused)
    assert conditions.cpu_mhz() is None
