"""Several answers at once, as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from node.request import Event


async def merged(
    streams: Sequence[AsyncGenerator[Event, None]],
) -> AsyncGenerator[tuple[int, Event], None]:
    """Events as they come, with the number of their stream; the first error ends them all.

    Closing it closes every stream. What waits here is at most the rest of the answers.
    """
    came: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()

    async def pump(index: int) -> None:
        async with aclosing(streams[index]) as events:
            async for event in events:
                came.put_nowait((index, event))

    tasks = [asyncio.create_task(pump(index)) for index in range(len(streams))]
    for index, task in enumerate(tasks):
        task.add_done_callback(lambda _, index=index: came.put_nowait((index, None)))  # type: ignore[misc]
    try:
        live = len(tasks)
        while live:
            index, event = await came.get()
            if event is None:
                live -= 1
                tasks[index].result()
            else:
                yield index, event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
