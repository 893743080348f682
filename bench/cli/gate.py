"""``gate``: two stored runs, or one and the kept baseline of its machine, as an exit code."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli import _verdicts
from bench.cli.compare import ALLOW
from bench.errors import WrongUsageError

if TYPE_CHECKING:
    from bench.store import Reading

SELFTEST = "selftest"


class _Gate(click.Command):
    """``gate selftest`` is a command of its own, that needs torch and is imported only when it is the one that runs."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == [SELFTEST]:
            selftest: click.Command = importlib.import_module("bench.cli.selftest").command
            return selftest.make_context(f"{info_name} {SELFTEST}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("gate", cls=_Gate)
@click.argument("files", nargs=-1, required=True, metavar="[BASE.jsonl] HEAD.jsonl", type=click.Path(path_type=Path))
@click.option("--baseline", is_flag=True, help="BASE is the baseline kept for HEAD's machine.")
@click.option("--name", metavar="NAME", help="Of the baseline.  [default: main]")
@click.option("--root", type=click.Path(path_type=Path, file_okay=False), help="Where baselines are kept.")
@ALLOW
@_verdicts.outputs
def command(  # the arguments are click's
    *,
    files: tuple[Path, ...],
    baseline: bool,
    name: str | None,
    root: Path | None,
    allow: tuple[str, ...],
    policy: Path | None,
    **chosen: Any,
) -> int:
    """Fail if head is slower, fatter or wronger than base, if a case vanished, or if nobody can tell.

    The two files of an `ab` job are decided as it decided them, by their pairs.

    Exit codes: 0 fine; 1 a regression; 3 not comparable (another host, a missing case, nothing measured); 4 too few of
    the cells could be decided. Where several hold, 3 comes before 1 and 1 before 4.

    \b
    attnbench gate base.jsonl head.jsonl
    attnbench gate --baseline head.jsonl --policy policy.toml --markdown comment.md
    attnbench gate selftest --help
    """  # noqa: D301  # \b is click's, for lines that stay as they are
    from bench import store
    from bench.gate import comparable, stored

    rules = _verdicts.policy_of(policy)
    allowed = comparable.parse_allowed(allow)
    wanted = 1 if baseline else 2
    if len(files) != wanted:
        what = "HEAD.jsonl alone with --baseline" if baseline else "BASE.jsonl and HEAD.jsonl, or --baseline HEAD.jsonl"
        raise WrongUsageError(f"gate: expected {what}, got {len(files)} files")
    if not baseline and (name is not None or root is not None):
        raise WrongUsageError("gate: --name and --root are of a baseline; give --baseline too")
    head = store.read(files[-1])
    base, said = _kept(head, name, root) if baseline else (store.read(files[0]), str(files[0]))
    found = stored.compare(base, head, rules, allowed=allowed, names=(said, str(files[-1])))
    _verdicts.show(found, chosen)
    return found.exit_code


def _kept(head: Reading, name: str | None, root: Path | None) -> tuple[Reading, str]:
    from bench.gate import baselines

    kept = baselines.of_host(head.records[0].host.fingerprint, name=name or baselines.MAIN, root=root or baselines.ROOT)
    return kept.reading, str(kept.path)
