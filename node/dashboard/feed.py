"""Server-sent events for all who watch; nothing is computed while nobody does.

Pictures are taken once a second for everybody together, and only what changed is sent. A watcher that reads
slowly gets the newest pictures and misses the older ones; decisions past what a reader could follow are
counted instead of sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from node.decisions import DecisionFeed, RecordedDecision
from node.errors import UnavailableError

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
MAX_WATCHERS = 16
DECISIONS_PER_TICK = 20
BACKLOG = 2 * DECISIONS_PER_TICK

STILL_HERE = ":\n\n"
"""A comment: tells the reader that nothing changed, and that this node lives."""

Pictures = Mapping[str, tuple[str, dict[str, Any]]]
"""Key -> (event name, data); a key's newer picture replaces its older one."""


class _Watcher:
    """What one reader has not been sent yet, already written out."""

    def __init__(self, pictures: Mapping[str, str]) -> None:
        self._pictures = dict(pictures)
        self._lines: deque[str] = deque(maxlen=BACKLOG)
        self._news = asyncio.Event()
        self._ended = False
        if pictures:
            self._news.set()

    def picture(self, key: str, text: str) -> None:
        self._pictures[key] = text

    def line(self, text: str) -> None:
        self._lines.append(text)
        self._news.set()

    def tick(self) -> None:
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def read(self) -> str | None:
        """Everything there is to send, at least a comment; None at the end."""
        await self._news.wait()
        self._news.clear()
        if self._ended:
            return None
        text = "".join((*self._pictures.values(), *self._lines))
        self._pictures.clear()
        self._lines.clear()
        return text or STILL_HERE


class Feed:
    """Fans pictures and decisions out to at most `MAX_WATCHERS` readers."""

    def __init__(
        self,
        take: Callable[[], Coroutine[Any, Any, Pictures]],
        decisions: DecisionFeed,
        describe: Callable[[RecordedDecision], dict[str, Any]],
        *helpers: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`take` takes the pictures; `helpers` run as long as somebody watches."""
        self._take = take
        self._decisions = decisions
        self._describe = describe
        self._helpers = helpers
        self._watchers: set[_Watcher] = set()
        self._latest: dict[str, str] = {}
        self._left = DECISIONS_PER_TICK
        self._missed = 0
        self._work: asyncio.Task[None] | None = None

    @property
    def watchers(self) -> int:
        """How many read now."""
        return len(self._watchers)

    def check_room(self) -> None:
        """Raises UnavailableError if nobody else can watch."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise UnavailableError(f"{MAX_WATCHERS} dashboards of this node are open already; close one")

    async def watch(self) -> AsyncGenerator[str, None]:
        """Server-sent events, at least one line a tick, until closed. Raises UnavailableError."""
        self.check_room()
        watcher = _Watcher(self._latest)
        self._watchers.add(watcher)
        if self._work is None:
            self._work = asyncio.create_task(self._work_until_unwatched())
            self._work.add_done_callback(self._stopped)
        try:
            while (text := await watcher.read()) is not None:
                yield text
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                await self.close()

    async def close(self) -> None:
        """Ends every reader's stream and all work for it."""
        for watcher in self._watchers:
            watcher.end()
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await asyncio.wait({work})

    async def _work_until_unwatched(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for helper in self._helpers:
                tasks.create_task(helper())
            tasks.create_task(self._follow_decisions())
            tasks.create_task(self._tick())

    def _stopped(self, work: asyncio.Task[None]) -> None:
        self._latest = {}
        if not work.cancelled() and work.exception() is not None:
            log.error("the dashboard's feed stopped", exc_info=work.exception())
            self._work = None
            for watcher in self._watchers:
                watcher.end()

    async def _tick(self) -> None:
        while True:
            before = self._latest
            self._latest = {
                key: write_event(event, data) for key, (event, data) in (await self._take()).items()
            }
            for key, text in self._latest.items():
                if before.get(key) != text:
                    for watcher in self._watchers:
                        watcher.picture(key, text)
            self._left = DECISIONS_PER_TICK
            if self._missed:
                self._say(write_event("missed", {"decisions": self._missed}))
                self._missed = 0
            for watcher in self._watchers:
                watcher.tick()
            await asyncio.sleep(TICK_SECONDS)

    async def _follow_decisions(self) -> None:
        async with aclosing(self._decisions.watch()) as decisions:
            async for recorded in decisions:
                if self._left:
                    self._left -= 1
                    self._say(write_event("decision", self._describe(recorded)))
                else:
                    self._missed += 1

    def _say(self, text: str) -> None:
        for watcher in self._watchers:
            watcher.line(text)


def write_event(event: str, data: dict[str, Any]) -> str:
    """One server-sent event (HTML Living Standard, 9.2); JSON has no line breaks of its own."""
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'), ensure_ascii=False)}\n\n"
