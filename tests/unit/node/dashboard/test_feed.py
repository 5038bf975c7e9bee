"""The feed: one sampling for all who watch, none for nobody, bounds for the slow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from node.dashboard import feed as feed_module
from node.dashboard.feed import BACKLOG, DECISIONS_PER_TICK, MAX_WATCHERS, STILL_HERE
from node.errors import UnavailableError
from tests.unit.node.dashboard.fakes import Studio, parse
from tests.unit.node.dashboard.test_pictures import decided

DEADLINE_SECONDS = 5.0


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "TICK_SECONDS", 0.005)


async def read(stream: AsyncGenerator[str, None]) -> str:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await anext(stream)


async def read_to_the_end(stream: AsyncGenerator[str, None]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for _ in stream:
            pass


async def read_until(stream: AsyncGenerator[str, None], event: str) -> Any:
    """The data of the next such event."""
    while True:
        for name, data in parse(await read(stream)):
            if name == event:
                return data


async def test_nothing_is_computed_unless_somebody_watches() -> None:
    studio = Studio()
    async with aclosing(studio.feed.watch()) as stream:
        assert studio.taken == 0, "the generator has not begun"
        await read(stream)
        assert (studio.taken, studio.helpers, studio.feed.watchers) == (1, 1, 1)
    assert (studio.helpers, studio.feed.watchers) == (0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left that could take a picture"


async def test_all_watchers_share_one_sampling_and_a_late_one_starts_with_the_latest() -> None:
    studio = Studio()
    async with aclosing(studio.feed.watch()) as first, aclosing(studio.feed.watch()) as second:
        assert await read_until(first, "mesh") == {"nodes": 1}
        assert await read_until(second, "mesh") == {"nodes": 1}
        assert studio.helpers == 1


async def test_only_what_changed_is_sent_and_silence_is_a_comment() -> None:
    studio = Studio()
    async with aclosing(studio.feed.watch()) as stream:
        await read_until(stream, "mesh")
        assert await read(stream) == STILL_HERE
        studio.pictures["mesh"] = {"nodes": 2}
        assert await read_until(stream, "mesh") == {"nodes": 2}


async def test_a_slow_watcher_gets_the_newest_picture_once_and_bounded_decisions() -> None:
    studio = Studio()
    async with aclosing(studio.feed.watch()) as stream:
        await read_until(stream, "mesh")
        for number in range(3, 10):
            studio.pictures["mesh"] = {"nodes": number}
            for index in range(DECISIONS_PER_TICK):
                studio.decisions.publish(*decided(f"{number}-{index}"))
            async with asyncio.timeout(DEADLINE_SECONDS):
                await studio.wait_taken(2)
        events = parse(await read(stream))
    assert [data for name, data in events if name == "mesh"] == [{"nodes": 9}]
    assert 0 < len([name for name, _ in events if name in ("decision", "missed")]) <= BACKLOG
    last = [data["id"] for name, data in events if name == "decision"][-1]
    assert last.startswith("9-")


async def test_decisions_past_what_can_be_read_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "TICK_SECONDS", 0.2)
    studio = Studio()
    async with aclosing(studio.feed.watch()) as stream:
        await read_until(stream, "mesh")
        for index in range(DECISIONS_PER_TICK + 7):
            studio.decisions.publish(*decided(str(index)))
        assert (await read_until(stream, "missed"))["decisions"] == 7


async def test_watchers_are_limited() -> None:
    studio = Studio()
    async with AsyncExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            await read(await stack.enter_async_context(aclosing(studio.feed.watch())))
        with pytest.raises(UnavailableError, match="close one"):
            studio.feed.check_room()
    studio.feed.check_room()


async def test_closing_ends_every_stream_at_once() -> None:
    studio = Studio()
    stream = studio.feed.watch()
    await read(stream)
    await studio.feed.close()
    await read_to_the_end(stream)
    assert studio.helpers == 0


async def test_a_fault_in_a_picture_ends_the_streams_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    studio = Studio()
    stream = studio.feed.watch()
    await read(stream)
    studio.pictures["mesh"] = {"nodes": object()}  # JSON can't say this
    with caplog.at_level(logging.ERROR):
        await read_to_the_end(stream)
    assert "feed stopped" in caplog.text
    studio.pictures["mesh"] = {"nodes": 5}
    async with aclosing(studio.feed.watch()) as again:
        assert await read_until(again, "mesh") == {"nodes": 5}
