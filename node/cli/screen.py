"""What depends on there being a terminal: redrawn displays, and notes beside the output."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live


def is_live() -> bool:
    """Whether standard output is a terminal that can be redrawn: no pipe, no file, not TERM=dumb."""
    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


def live(*, whole: bool) -> Live:
    """A display on standard output; `whole` takes the screen and gives it back as it was.

    What is written to standard error meanwhile appears above it, where that is the same terminal.
    """
    console = Console(markup=False, highlight=False)
    return Live(
        console=console,
        screen=whole,
        transient=True,
        auto_refresh=False,
        redirect_stdout=not whole,
        redirect_stderr=Console(stderr=True).is_terminal,
        vertical_overflow="crop",
    )


def note(text: str) -> None:
    """A remark for a person, on standard error; programs get none."""
    console = Console(stderr=True, markup=False, highlight=False)
    if console.is_terminal:
        console.print(text, style="dim")
