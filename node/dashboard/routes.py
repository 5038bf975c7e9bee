"""The page, its parts and its data, as routes of the HTTP door.

The page's own files are for anybody, as a login form is; every question about the mesh is for the roles in
the table of `certs.roles`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from certs.roles import Role
from node.authorization import admit_http
from node.dashboard.feed import Feed
from node.errors import ForbiddenError, UnauthenticatedError
from node.http.callers import Callers, HttpCaller

FOLDER: Final = Path(__file__).parent / "static"
MAX_MESSAGES = 4096

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""On everything the dashboard answers: nothing from elsewhere runs in the page, nothing leaves it."""


class ChatMessage(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="forbid")

    role: str
    content: str


class BlocksBody(BaseModel):
    """POST /dashboard/blocks."""

    model_config = ConfigDict(extra="forbid")

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]


class Pages(Protocol):
    """What the routes ask of a dashboard."""

    feed: Feed

    def session(self, role: Role) -> dict[str, Any]: ...

    def prompt_blocks(self, messages: list[dict[str, str]], caller: str) -> dict[str, Any]: ...


class _Guarded(StaticFiles):
    """Static files with the dashboard's headers; browsers ask each time whether theirs is current."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS | {"cache-control": "no-cache"})
            await send(message)

        await super().__call__(scope, receive, send_guarded)


def add_dashboard(application: FastAPI, pages: Pages, callers: Callers) -> None:
    """Mounts the dashboard at `/`."""

    def admitted(http: HttpRequest) -> HttpCaller:
        caller = callers.identify(http)
        admit_http(caller.role, http.url.path)
        return caller

    @application.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(FOLDER / "index.html", headers=HEADERS | {"cache-control": "no-cache"})

    @application.get("/dashboard/session", include_in_schema=False)
    async def session(http: HttpRequest, response: Response) -> dict[str, Any]:
        _guard(response)
        return pages.session(admitted(http).role)

    @application.post("/dashboard/blocks", include_in_schema=False)
    async def blocks(body: BlocksBody, http: HttpRequest, response: Response) -> dict[str, Any]:
        _guard(response)
        messages = [message.model_dump() for message in body.messages]
        return await asyncio.to_thread(pages.prompt_blocks, messages, admitted(http).name)

    @application.get("/dashboard/events", include_in_schema=False)
    async def events(http: HttpRequest) -> StreamingResponse:
        admitted(http)
        pages.feed.check_room()

        async def stream() -> AsyncGenerator[str, None]:
            async with aclosing(pages.feed.watch()) as texts:
                async for text in texts:
                    try:
                        admitted(http)  # a stream outlives keys
                    except (UnauthenticatedError, ForbiddenError):
                        return
                    yield text

        headers = HEADERS | {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)

    application.mount("/static", _Guarded(directory=FOLDER), name="dashboard")


def _guard(response: Response) -> None:
    response.headers.update(HEADERS | {"cache-control": "no-store"})
