"""What a start is busy with, told to whoever listens: some of it takes long, the first time."""

from __future__ import annotations

from collections.abc import Callable

ProgressListener = Callable[[str], None]

_listeners: list[ProgressListener] = []


def listen(listener: ProgressListener) -> None:
    """Tells `listener` of every stage that begins in this process from now on."""
    _listeners.append(listener)


def begin(stage: str) -> None:
    """A stage begins that may take seconds; the text says what it does, in a few words."""
    for listener in _listeners:
        listener(stage)
