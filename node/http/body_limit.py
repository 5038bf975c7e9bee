"""Refuses request bodies past a size before anything parses them."""

from __future__ import annotations

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.errors import InvalidRequestError
from node.http.openai import error_object

TOO_LARGE = 413


class _BodyTooLargeError(Exception):
    pass


class BodyLimit:
    """ASGI middleware; counts what arrives, whatever the headers claim."""

    def __init__(self, application: ASGIApp, max_bytes: int) -> None:
        self._application = application
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise _BodyTooLargeError
            return message

        try:
            await self._application(scope, counted, send)
        except _BodyTooLargeError:
            error = InvalidRequestError(f"the body is over {self._max_bytes} bytes; send a smaller request")
            await JSONResponse(error_object(error), status_code=TOO_LARGE)(scope, receive, send)
