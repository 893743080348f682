"""``list``: the variants, and whether they can run here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from bench.cli import _tables
from bench.errors import WrongUsageError

if TYPE_CHECKING:
    from bench.sweep.messages import Entry
    from bench.sweep.scout import Scout
    from variants._contract import Workload


@click.command("list")
@click.option("--variant-file", "variant_files", multiple=True, metavar="FILE.py", help="Your own variant.")
@click.option("--device", default="auto", metavar="auto|cpu|cuda[:i]", help="Where they should run.")
@click.option("--json", "as_json", is_flag=True, help="Everything about them, as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="A page: equations, costs, masks, papers, traps.")
def command(*, variant_files: tuple[str, ...], device: str, as_json: bool, as_markdown: bool) -> None:
    """Every variant: what it is, and whether it runs here or why not.

    That is asked of a typical forward, 1×8×1024×64: float32 on a CPU, bfloat16 on CUDA.
    """
    from bench.sweep import supervisor
    from bench.sweep.scout import Scout

    if as_json and as_markdown:
        raise WrongUsageError("--json and --markdown are two ways to say it: give one of them")
    with Scout(engine=supervisor.ENGINE) as scout:
        catalogued = scout.catalogue(variant_files, device)
        if as_markdown:
            from bench.cli import _variant_page

            click.echo(_variant_page.page(catalogued.entries, scout, _typical(catalogued.device)))
            return
        obstacles = _obstacles(scout, catalogued.entries, _typical(catalogued.device))
    if as_json:
        described = [_described(entry, obstacles[entry.name], catalogued.device) for entry in catalogued.entries]
        click.echo(json.dumps(described, indent=2, ensure_ascii=False))
        return
    rows = [
        (
            entry.name,
            entry.about.family,
            "exact" if entry.about.exact else "approximate",
            "; ".join(f"no: {reason}" for reason in obstacles[entry.name]) or "yes",
            entry.about.summary,
        )
        for entry in catalogued.entries
    ]
    _tables.show(("variant", "family", "exactness", f"runs on {catalogued.device}", "what it does"), rows)


def _typical(device: str) -> Workload:
    """What variants are asked about."""
    from variants._contract import Workload

    kind = device.partition(":")[0]
    return Workload(device=kind, dtype="float32" if kind == "cpu" else "bfloat16")


def _obstacles(scout: Scout, entries: Sequence[Entry], workload: Workload) -> dict[str, list[str]]:
    from bench.record import Case

    cases = [Case(variant=entry.name, parameters=entry.parameters, workload=workload) for entry in entries]
    prospects = scout.survey(cases, {entry.name: entry.file for entry in entries})
    return {case.variant: prospect.reasons for case, prospect in zip(cases, prospects, strict=True)}


def _described(entry: Entry, obstacles: list[str], device: str) -> dict[str, Any]:
    about = entry.about
    return {
        "name": entry.name,
        "family": about.family,
        "exact": about.exact,
        "summary": about.summary,
        "equation": entry.equation,
        "exact_when": entry.exact_when,
        "traps": entry.traps,
        "paper": about.paper,
        "time_exponent": about.time_exponent,
        "memory_exponent": about.memory_exponent,
        "causal_leak": about.causal_leak,
        "parameters": entry.parameters,
        "package": entry.package,
        "device": device,
        "runnable": not obstacles,
        "obstacles": obstacles,
    }
