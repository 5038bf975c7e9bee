"""A client that hangs up before its answer is complete ends the work for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request as HttpRequest

Result = TypeVar("Result")


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def until_disconnect(http: HttpRequest, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, cancelled when the client disconnects; raises ClientGoneError."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
