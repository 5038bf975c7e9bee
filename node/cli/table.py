"""Tables as `kubectl` prints them: no lines, upper-case headings, no cell cut or wrapped."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

PIPE_COLUMNS = 200
"""Width where no terminal sets one: nothing is cut for a program or a file."""


def plain_table(*headings: str) -> Table:
    """An empty table; a heading that begins with ">" is of a column of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        name = heading.removeprefix(">").upper()
        table.add_column(name, justify="right" if heading.startswith(">") else "left", no_wrap=True)
    return table


def terminal() -> Console:
    """Standard output, as wide as its terminal."""
    console = Console(markup=False)  # peers and models choose some of what is shown
    return console if console.is_terminal else Console(width=PIPE_COLUMNS, markup=False)
