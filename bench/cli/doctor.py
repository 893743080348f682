"""``doctor``: is this machine fit to measure?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.machine.doctor import Finding, Runnable

_COLOURS = {"ok": "green", "warn": "yellow", "unfit": "bold red", "unknown": "dim"}
_UNFIT = 1


@click.command()
@click.option("--device", default="auto", metavar="auto|cpu|cuda", help="What is to be measured on.", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads of the noise floor.  [default: usable cores]")
@click.option(
    "--processes",
    type=click.IntRange(min=0),
    default=6,
    show_default=True,
    help="Processes of identical code for the noise floor, about four seconds each; 0 leaves it out.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 where the machine is not fit.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object on stdout.")
def command(*, device: str, threads: int | None, processes: int, strict: bool, as_json: bool) -> int:
    """Say whether this machine is fit to measure, and what to do if it is not.

    Looks at load, stolen time, governor, threads, throttling, temperature and, on a GPU, other processes; at library
    versions and which variants can run; and measures the noise floor with identical code in several processes.
    """
    import msgspec
    import torch

    import variants
    from bench.machine import doctor, host
    from bench.measure import cuda
    from bench.sweep import noise
    from variants._contract import Workload

    device = _chosen(device)
    source = host.describe_source()
    machine = host.describe_host(device)
    findings = doctor.listen()
    if device == "cuda" and (nvml := cuda.nvml()) is not None:
        findings += doctor.gpu(nvml, cuda.nvml_handle(torch.cuda, nvml))
    floor = noise.noise_floor(device=device, threads=threads or host.usable_cores(), processes=processes)
    findings.append(doctor.noisy(floor))
    runnable = doctor.runnable(variants.find().values(), Workload(device=device))
    fit = doctor.is_fit(findings)
    if as_json:
        told: dict[str, Any] = {
            "fit": fit,
            "device": device,
            "findings": findings,
            "noise_medians_seconds": None if floor is None else floor.medians,
            "variants": runnable,
            "host": machine,
            "source": source,
        }
        click.echo(json.dumps(msgspec.to_builtins(told), indent=2, ensure_ascii=False))
    else:
        _show(machine.device_name, findings, runnable, source.versions, fit=fit)
    return _UNFIT if strict and not fit else 0


def _chosen(device: str) -> str:
    """The device type that is meant.

    Raises:
        WrongUsageError: no such device, or not here.

    """
    import torch

    from bench.errors import WrongUsageError

    if device not in ("auto", "cpu", "cuda"):
        raise WrongUsageError(f"expected a device of auto, cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise WrongUsageError("no CUDA device is available here; use --device cpu, or look at nvidia-smi")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def _show(
    device_name: str, findings: Sequence[Finding], runnable: Sequence[Runnable], versions: dict[str, str], *, fit: bool
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=device_name, title_justify="left", box=box.SIMPLE)
    for heading in ("looked at", "found", "verdict", "what to do"):
        table.add_column(heading)
    for finding in findings:
        colour = _COLOURS[finding.state]
        table.add_row(finding.name, finding.value, f"[{colour}]{finding.state}[/]", finding.advice)
    console.print(table)
    can = [variant.name for variant in runnable if not variant.obstacles]
    console.print(f"can run here: {', '.join(can) or 'none'}", markup=False)
    for variant in runnable:
        if variant.obstacles:
            console.print(f"cannot: {variant.name} ({'; '.join(variant.obstacles)})", markup=False)
    console.print(f"versions: {', '.join(f'{name} {version}' for name, version in versions.items())}", markup=False)
    console.print("[green]fit to measure[/]" if fit else "[bold red]not fit to measure[/]")
