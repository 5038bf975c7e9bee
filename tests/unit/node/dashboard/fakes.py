"""A dashboard's parts between fakes: pictures that change when told to, and pages that say little."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from certs.roles import Role
from node.dashboard.feed import Feed, Pictures
from node.decisions import DecisionFeed, RecordedDecision


class Studio:
    """Takes the pictures that a feed asks for, and counts how often it was asked."""

    def __init__(self) -> None:
        self.decisions = DecisionFeed()
        self.pictures: dict[str, dict[str, Any]] = {"mesh": {"nodes": 1}}
        self.taken = 0
        self.helpers = 0
        self.on_taking: Callable[[int], None] = lambda taken: None
        self._taken = asyncio.Condition()
        self.feed = Feed(self._take, self.decisions, describe, self._help)

    async def _take(self) -> Pictures:
        async with self._taken:
            self.taken += 1
            self._taken.notify_all()
        self.on_taking(self.taken)
        return {key: (key, dict(data)) for key, data in self.pictures.items()}

    async def wait_taken(self, more: int) -> None:
        """Until so many more pictures were taken."""
        enough = self.taken + more
        async with self._taken:
            await self._taken.wait_for(lambda: self.taken >= enough)

    async def _help(self) -> None:
        self.helpers += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.helpers -= 1


def describe(recorded: RecordedDecision) -> dict[str, Any]:
    return {"id": recorded.request.id}


def parse(text: str) -> list[tuple[str, Any]]:
    """The events of a piece of a stream, comments left out."""
    events = []
    for block in text.split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith("event: "):
            assert lines[1].startswith("data: ")
            events.append((lines[0][7:], json.loads(lines[1][6:])))
    return events


class FakePages:
    """What routes ask of a dashboard."""

    def __init__(self) -> None:
        self.studio = Studio()
        self.feed = self.studio.feed
        self.asked: list[str] = []

    def session(self, role: Role) -> dict[str, Any]:
        return {"role": role.value}

    def prompt_blocks(self, messages: list[dict[str, str]], caller: str) -> dict[str, Any]:
        self.asked.append(caller)
        return {"blocks": [{"hash": "0", "text": message["content"]} for message in messages]}
