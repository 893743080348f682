"""Tables on stdout: as wide as they need to be where no terminal cuts them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNLIMITED = 10_000


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print a table; the columns in ``right`` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    console = Console(highlight=False, width=_UNLIMITED, no_color=True)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
