"""Virtual time: tasks in the order of their times, those of the same time in the order given."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable
from typing import Any, TypeAlias

Entry: TypeAlias = tuple[float, int, Callable[..., None], tuple[Any, ...]]

SLICES_PER_S = 1_000
"""A mesh of 1,000 nodes has some twenty tasks in each."""


class Clock:
    """What is to be done when; `now` is in seconds.

    A calendar queue (Brown, CACM 1988): tasks gather unsorted in slices of time, and are sorted when
    their slice begins. One heap of all tasks costs three times as much.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._sequence = 0
        self._slices: dict[int, list[Entry]] = {}
        self._order: list[int] = []
        self._current = -1
        self._present: list[Entry] = []
        """The tasks of the current slice, the last first."""

    def at(self, when: float, task: Callable[..., None], *arguments: Any) -> None:
        """Has `task(*arguments)` done at `when`, or now if that is over."""
        self._sequence += 1
        number = int(when * SLICES_PER_S)
        if number <= self._current:
            insort(self._present, (when, self._sequence, task, arguments), key=_backwards)
            return
        entries = self._slices.get(number)
        if entries is None:
            self._slices[number] = entries = []
            heapq.heappush(self._order, number)
        entries.append((when, self._sequence, task, arguments))

    def later(self, delay: float, task: Callable[..., None], *arguments: Any) -> None:
        """Has `task(*arguments)` done in `delay` seconds."""
        self.at(self.now + delay, task, *arguments)

    def run_until(self, condition: Callable[[], bool], deadline: float, every: float) -> bool:
        """Runs until `condition` holds, looking each `every` seconds; False past the deadline."""
        look_at = self.now
        while True:
            if self.now >= look_at:
                if condition():
                    return True
                look_at = self.now + every
            stop = min(look_at, deadline)
            self._run_to(stop)
            self.now = stop
            if stop >= deadline:
                return condition()

    def _run_to(self, stop: float) -> None:
        last = int(stop * SLICES_PER_S)
        while True:
            present = self._present
            while present and present[-1][0] <= stop:
                when, _, task, arguments = present.pop()
                self.now = max(self.now, when)
                task(*arguments)
            if present or not self._order or self._order[0] > last:
                return
            self._current = heapq.heappop(self._order)
            self._present = self._slices.pop(self._current)
            self._present.sort(reverse=True)


def _backwards(entry: Entry) -> tuple[float, int]:
    return -entry[0], -entry[1]
