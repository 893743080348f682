"""``compare``: two stored runs, as a table of verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bench.cli import _verdicts

ALLOW = click.option(
    "--allow",
    multiple=True,
    metavar="NAME,…",
    help="May differ or be amiss: host, settings, versions, damaged, kinds, incomplete; or one thing: versions.torch.",
)


@click.command("compare")
@click.argument("base", metavar="BASE.jsonl", type=click.Path(path_type=Path))
@click.argument("head", metavar="HEAD.jsonl", type=click.Path(path_type=Path))
@ALLOW
@_verdicts.outputs
def command(*, base: Path, head: Path, allow: tuple[str, ...], policy: Path | None, **chosen: Any) -> int:
    """Compare two runs: faster, same, slower, unclear, missing, broke or fixed, case by case.

    The exit code is 0 whatever is found, and 3 where the runs cannot be compared; 'gate' makes it an exit code.
    """
    from bench.gate import comparable, judgement, stored

    rules = _verdicts.policy_of(policy)
    allowed = comparable.parse_allowed(allow)
    found = stored.read_and_compare(str(base), str(head), rules, allowed=allowed)
    _verdicts.show(found, chosen, gates=False)
    return judgement.INCOMPARABLE if found.problems else judgement.FINE
