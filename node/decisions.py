"""Recent routing decisions, for whoever watches; a slow watcher misses some and holds up nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from node.request import Request
from overlay.core.routing import Decision

WATCHER_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """One decision as it was made; `unix_time_s` is for people."""

    request: Request
    decision: Decision
    unix_time_s: float


class DecisionFeed:
    """Fans decisions out to any number of watchers."""

    def __init__(self) -> None:
        self.last: RecordedDecision | None = None
        self._watchers: set[asyncio.Queue[RecordedDecision]] = set()

    def publish(self, request: Request, decision: Decision) -> None:
        self.last = recorded = RecordedDecision(request, decision, time.time())
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(recorded)

    async def watch(self) -> AsyncGenerator[RecordedDecision, None]:
        """Decisions from now on, until the generator is closed."""
        queue: asyncio.Queue[RecordedDecision] = asyncio.Queue(WATCHER_BACKLOG)
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)
