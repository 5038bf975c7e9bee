"""What a slow start is busy with, shown while it lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Tell = Callable[[str], None]


@contextmanager
def stages(elsewhere: Tell) -> Iterator[Tell]:
    """Shows each stage that it is told on standard error with the time it takes, and wipes it at the end.

    Where that is no terminal, stages go to `elsewhere`.
    """
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield elsewhere
        return
    columns = SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda stage: progress.reset(task, description=stage)
