"""``merge``: shards and hosts into one file."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("merge")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.jsonl", help="A new file.")
def command(*, files: tuple[Path, ...], out: Path) -> None:
    """Join run files, such as the shards of a sweep or runs of several hosts, into one.

    Of what stands in them twice (the same run, case and process) the last counts. Cases come first, then trials. Lines
    that cannot be read, and kinds of records that this version does not know, are left out and named.
    """
    from bench import store
    from bench.fidelity import trial

    reading = store.read(*files, apart=trial.KINDS)
    trials = trial.of_lines(reading.apart)
    records = [*reading.records, *trials.records]
    with store.Appender(out) as appender:
        appender.append(*records)
    for problem in [*reading.problems, *trials.problems]:
        click.echo(f"warning: left out {problem}", err=True)
    for kind, count in reading.skipped.items():
        click.echo(f"warning: left out {count} records of the unknown kind {kind!r}; upgrade attention-bench", err=True)
    runs = len({record.run_id for record in records})
    hosts = len({record.host.fingerprint for record in records})
    of_trials = f", {len(trials.records)} of them trials," if trials.records else ""
    click.echo(f"{out}: {len(records)} records{of_trials} of {runs} runs on {hosts} hosts")
