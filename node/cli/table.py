"""Tables as `kubectl` prints them: no lines, upper-case headings, no cell cut or wrapped."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

WIDEST = 1000
"""Columns that a table may ask for; what is wider than the terminal is the terminal's to wrap."""


def plain_table(*headings: str) -> Table:
    """An empty table; a heading that begins with ">" is of a column of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        name = heading.removeprefix(">").upper()
        table.add_column(name, justify="right" if heading.startswith(">") else "left", no_wrap=True)
    return table


def terminal() -> Console:
    """Standard output. Peers and models choose some of what is shown, so nothing in it is markup."""
    console = Console(markup=False, highlight=False)
    console.soft_wrap = not console.is_terminal  # a program gets each line whole
    return console


def print_table(table: Table) -> None:
    """Prints a table whole, however wide the terminal is."""
    console = terminal()
    widest = console.options.update(max_width=WIDEST)
    console.width = max(Measurement.get(console, widest, table).maximum, console.width)
    console.print(table, crop=False)
