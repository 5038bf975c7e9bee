"""How much work this node lets queue up before it tells peers BUSY, and before it refuses its own clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from engine.interface import EngineStats

LOCAL_ALLOWANCE = 2
"""An entry node queues this times what it would take from peers: its clients have nowhere else to go."""

SHORTEST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 30.0


class Admission:
    """Judged before any prefill, by the uncached prompt tokens already queued.

    A client may queue no more here than is still free: one alone leaves half of the room, two a third, and
    a newcomer always finds some (dynamic thresholds: Choudhury and Hahne, 1998).
    """

    def __init__(self, max_queued_tokens: int, max_requests: int) -> None:
        """`max_requests` is how many live requests the engine holds."""
        self.max_queued_tokens = max_queued_tokens
        self.max_requests = max_requests
        self.draining = False
        self._tokens: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()

    def accepts_peers(self, stats: EngineStats) -> bool:
        return (
            not self.draining
            and self._free_requests(stats) > 0
            and stats.queued_prefill_tokens < self.max_queued_tokens
        )

    def accepts_clients(self, stats: EngineStats, client: str) -> bool:
        free_tokens = self.max_queued_tokens * LOCAL_ALLOWANCE - stats.queued_prefill_tokens
        return self._requests[client] < self._free_requests(stats) and self._tokens[client] < free_tokens

    @contextmanager
    def queued(self, client: str, uncached_tokens: int) -> Iterator[Place]:
        """Counts a client's request while the context is open, and its tokens until it leaves the queue."""
        place = Place(self._tokens, client, uncached_tokens)
        self._requests[client] += 1
        try:
            yield place
        finally:
            place.leave()
            _subtract(self._requests, client, 1)

    def _free_requests(self, stats: EngineStats) -> int:
        return self.max_requests - stats.running - stats.waiting

    def retry_after_s(self, stats: EngineStats) -> float:
        """When half of what is queued will be done, by this engine's own measured rate."""
        wait = stats.queued_prefill_tokens * stats.seconds_per_prefill_token / 2
        return min(max(wait, SHORTEST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)


class Place:
    """One request's tokens in the local queue."""

    def __init__(self, tokens: Counter[str], client: str, count: int) -> None:
        self._tokens = tokens
        self._client = client
        self._count = count
        tokens[client] += count

    def leave(self) -> None:
        """Its prompt is computed; may be said again."""
        _subtract(self._tokens, self._client, self._count)
        self._count = 0


def _subtract(counter: Counter[str], client: str, count: int) -> None:
    counter[client] -= count
    if not counter[client]:
        del counter[client]
