"""Deadlines inside the core, in one heap."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeAlias

Callback: TypeAlias = Callable[[float], None]
"""Called with the present time."""


class Timer:
    """One deadline. A cancelled timer never fires."""

    __slots__ = ("_timers", "at", "callback")

    def __init__(self, at: float, callback: Callback, timers: Timers) -> None:
        self.at = at
        self.callback: Callback | None = callback
        self._timers = timers

    def cancel(self) -> None:
        self.callback = None
        self._timers.changed = True


class Timers:
    """Pending deadlines; those of the same time fire in the order they were set.

    `changed` says that `next` may have another answer than last time.
    """

    def __init__(self) -> None:
        self.changed = False
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0

    def at(self, when: float, callback: Callback) -> Timer:
        """Has `callback` called at `when` or soon after."""
        timer = Timer(when, callback, self)
        self._sequence += 1
        self.changed = True
        heapq.heappush(self._heap, (when, self._sequence, timer))
        return timer

    def next(self) -> float | None:
        """When the next timer is due."""
        self.changed = False
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_due(self, now: float) -> None:
        """Fires what is due at `now`; timers set meanwhile wait for the next call, due or not."""
        self.changed = True
        last = self._sequence
        postponed: list[tuple[float, int, Timer]] = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if entry[1] > last:
                postponed.append(entry)
                continue
            callback, entry[2].callback = entry[2].callback, None
            if callback is not None:
                callback(now)
        for entry in postponed:
            heapq.heappush(self._heap, entry)
