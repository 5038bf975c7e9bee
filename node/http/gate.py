"""What a request must pass before its body is parsed: who sends it, how often, how much and how deep."""

from __future__ import annotations

import json
import re

from fastapi import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node import limits
from node.call_budget import CallBudget
from node.errors import InvalidRequestError, RequestError, TooLargeError
from node.http.callers import Callers
from node.http.json_depth import json_depth
from node.http.refusals import error_response

GUARDED = ("/v1/", "/dashboard/")


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class _HungUpError(Exception):
    """The client went away in the middle of its request."""


class Gate:
    """ASGI middleware; counts what arrives, whatever the headers claim."""

    def __init__(self, application: ASGIApp, callers: Callers, budget: CallBudget) -> None:
        self._application = application
        self._callers = callers
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] != "http" or not scope["path"].startswith(GUARDED):
                await self._pass(scope, receive, send)
                return
            # Nobody's body is read before it is known whose it is.
            caller = self._callers.identify(HttpRequest(scope))
            with self._budget.call(caller.name):
                await self._pass(scope, receive, send)
        except RequestError as error:
            await error_response(error)(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        try:
            body = await _read(receive)
        except _HungUpError:
            return
        if json_depth(body) > limits.MAX_JSON_DEPTH:
            raise InvalidRequestError(f"the body nests over {limits.MAX_JSON_DEPTH} arrays and objects deep")
        _check_text(body)
        await self._application(scope, _replaying(body, receive), send)


def _check_text(body: bytes) -> None:
    """JSON can write halves of characters, which no text has and nothing behind this door can write."""
    if not _SURROGATE.search(body):
        return
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("the body has half of a surrogate pair; send whole characters") from None
    except ValueError:
        return  # it is no JSON, of which the parser will tell


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _HungUpError
        body += message.get("body", b"")
        if len(body) > limits.MAX_BODY_BYTES:
            raise TooLargeError(f"the body is over {limits.MAX_BODY_BYTES} bytes; send a smaller request")
        if not message.get("more_body", False):
            return bytes(body)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then what else the client does."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
