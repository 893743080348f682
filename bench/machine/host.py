"""The machine and the code that a record comes from.

The machine is its hardware: no user, host or path name, no kernel, clock or version.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil
import torch

from bench.record import Host, Source

_CPUINFO = Path("/proc/cpuinfo")
_X86 = ("vendor_id", "cpu family", "model", "stepping")
_ARM = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")
_GIB = 1024**3
_LIBRARIES = (
    "attention-bench",
    "torch",
    "triton",
    "numpy",
    "xformers",
    "linformer-pytorch",
    "reformer-pytorch",
    "nvidia-ml-py",
)


def describe_host(device: str) -> Host:
    """The hardware. ``device`` chooses which part gives the ``device_name``: ``cpu``, ``cuda`` or ``cuda:1``."""
    cpu = _cpu()
    cores = usable_cores()
    memory_gib = round(psutil.virtual_memory().total / _GIB)
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    hardware = (cpu.get("identity", ""), cpu.get("flags", ""), cores, memory_gib, gpus)
    on_gpu = device.startswith("cuda")
    return Host(
        fingerprint=hashlib.sha256(repr(hardware).encode()).hexdigest()[:16],
        device_name=torch.cuda.get_device_name(device) if on_gpu else cpu["name"],
        cpu=cpu["name"],
        cores=cores,
        memory_gib=memory_gib,
        gpus=gpus,
        gpu_memory_bytes=torch.cuda.get_device_properties(device).total_memory if on_gpu else None,
        system=platform.system(),
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_source() -> Source:
    """Revision and state of the repository that the code lies in, if it is tracked by one, and library versions."""
    git, dirty = _revision(Path(__file__).parents[2])
    return Source(git=git, dirty=dirty, versions=library_versions())


def library_versions() -> dict[str, str]:
    """Versions of Python and of every library that can change a result, where installed; CUDA's and cuDNN's too."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
        cudnn: Any = torch.backends.cudnn  # torch has no annotations here
        versions["cudnn"] = str(cudnn.version())
    return versions


def _cpu() -> dict[str, str]:
    """``name``, and where the system tells, ``identity`` (vendor, family, model, stepping) and sorted ``flags``."""
    if not _CPUINFO.is_file():
        name = platform.processor() or platform.machine()
        return {"name": name, "identity": f"{name} {platform.machine()}"}
    return parse_cpuinfo(_CPUINFO.read_text())


def parse_cpuinfo(text: str) -> dict[str, str]:
    """From ``/proc/cpuinfo``, of its first processor. x86 and Arm spell things differently."""
    fields: dict[str, str] = {}
    for line in text.split("\n\n", maxsplit=1)[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    identity = " ".join(fields[part] for part in _X86 + _ARM if part in fields)
    flags = " ".join(sorted((fields.get("flags") or fields.get("Features", "")).split()))
    return {"name": fields.get("model name") or platform.machine(), "identity": identity, "flags": flags}


def _revision(folder: Path) -> tuple[str | None, bool | None]:
    """Commit, and whether code differs from it; None where git or a repository that tracks this code is missing."""
    tracked = _git(folder, "ls-files", "--error-unmatch", "bench/__init__.py")
    revision = _git(folder, "rev-parse", "HEAD")
    if tracked is None or revision is None:
        return None, None
    changed = _git(folder, "status", "--porcelain", "--", "bench", "variants")
    return revision.strip(), bool(changed and changed.strip())


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  # fixed arguments
            ["git", "-C", str(folder), *arguments],  # noqa: S607  # whichever git there is
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
