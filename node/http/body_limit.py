"""Refuses request bodies past a size before anything parses them."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOO_LARGE = 413


class BodyLimit:
    """ASGI middleware; counts what arrives, whatever the headers claim."""

    def __init__(self, application: ASGIApp, max_bytes: int) -> None:
        self._application = application
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(
                    TOO_LARGE, f"the body is over {self._max_bytes} bytes; send a smaller request"
                )
            return message

        await self._application(scope, counted, send)
