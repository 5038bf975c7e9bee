"""Who is admitted next: fair between clients, by priority within one.

Every client has a counter of the work done for it, in tokens, and the least served one is next (virtual token
counter, arXiv 2401.00588). A client that comes back is lifted to the least served of those that wait, so that
time spent idle can't be saved up. Nobody starves another: whoever floods raises a counter that passes theirs.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Collection
from typing import Final

from engine.sequence import Sequence

OUTPUT_WEIGHT: Final = 2
"""A generated token's price in prompt tokens, as in the paper."""

HEAD_START: Final = 2048
"""Tokens of service that a request is ahead of other clients' for each step of its priority."""

MAX_CLIENTS: Final = 4096
"""Counters kept; past it the least served of the clients that don't wait is forgotten."""


class WaitingQueue:
    """Sequences that wait for admission, and what each client was served."""

    def __init__(self) -> None:
        self._queues: dict[str, list[Sequence]] = {}
        self._served: dict[str, int] = {}
        self._floor = 0
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def expected_prefill(self) -> int:
        """Prompt tokens that all of them expect to compute."""
        return sum(sequence.expected_prefill for queue in self._queues.values() for sequence in queue)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence; one that was preempted goes where its first arrival puts it."""
        client = sequence.request.client
        if client not in self._queues:
            self._served[client] = max(self._served.get(client, 0), self._least_served())
            self._queues[client] = []
        if sequence.arrival is None:
            sequence.arrival = next(self._arrivals)
        insort(self._queues[client], sequence, key=_within_client)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out; raises ValueError if it doesn't wait."""
        client = sequence.request.client
        self._queues[client].remove(sequence)
        self._floor = self._least_served()
        if not self._queues[client]:
            del self._queues[client]

    def first(self, passed_over: Collection[Sequence] = ()) -> Sequence | None:
        """The next to be admitted, but for those passed over."""
        heads = (
            next((sequence for sequence in queue if sequence not in passed_over), None)
            for queue in self._queues.values()
        )
        return min(
            filter(None, heads), key=lambda head: (self.rank(head), _within_client(head)), default=None
        )

    def rank(self, sequence: Sequence) -> int:
        """How much its client was served, less the head start of its priority: low goes first."""
        request = sequence.request
        return self._served.get(request.client, self._floor) - HEAD_START * request.priority

    def charge(self, client: str, tokens: int) -> None:
        """Counts work done for a client."""
        self._served[client] = self._served.get(client, self._floor) + tokens
        if len(self._served) > MAX_CLIENTS:
            idle = self._served.keys() - self._queues.keys()
            del self._served[min(idle, key=self._served.__getitem__)]

    def _least_served(self) -> int:
        """The counter of the least served client that waits; the last such one if none does."""
        return min((self._served[client] for client in self._queues), default=self._floor)


def _within_client(sequence: Sequence) -> tuple[int, int]:
    return (-sequence.request.priority, sequence.arrival or 0)
