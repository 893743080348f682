"""``merge``: shards and hosts into one file."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("merge")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.jsonl", help="A new file.")
def command(*, files: tuple[Path, ...], out: Path) -> None:
    """Join run files, such as the shards of a sweep or runs of several hosts, into one.

    Of what stands in them twice (the same run, case and process) the last counts. Lines that cannot be read, and
    kinds of records that this version does not know, are left out and named.
    """
    from bench import store

    reading = store.read(*files)
    with store.Appender(out) as appender:
        appender.append(*reading.records)
    for problem in reading.problems:
        click.echo(f"warning: left out {problem}", err=True)
    for kind, count in reading.skipped.items():
        click.echo(f"warning: left out {count} records of the unknown kind {kind!r}; upgrade attention-bench", err=True)
    runs = len({record.run_id for record in reading.records})
    hosts = len({record.host.fingerprint for record in reading.records})
    click.echo(f"{out}: {len(reading.records)} records of {runs} runs on {hosts} hosts")
