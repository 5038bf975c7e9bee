"""OpenAI's answers: one whole object, or server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from engine.interface import FinishReason
from node.errors import RequestError
from node.grpc_errors import engine_errors_as_request_errors
from node.request import Chunk, Done, Event, Request, Route, Usage

FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stop",
    FinishReason.DEADLINE: "length",
}


class AnswerFormat:
    """How one kind of completion is written; `chat` or plain text."""

    def __init__(self, request: Request, model: str, *, chat: bool, include_usage: bool = False) -> None:
        self._chat = chat
        self._include_usage = include_usage
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request.id}",
            "created": int(time.time()),
            "model": model,
        }

    async def whole(self, events: AsyncIterator[Event]) -> dict[str, Any]:
        """The complete answer as one object."""
        text, done = "", None
        async for event in events:
            if isinstance(event, Chunk):
                text += event.text
            elif isinstance(event, Done):
                done = event
        assert done is not None, "the pipeline ends every answer with Done or an error"
        choice: dict[str, Any] = {"index": 0, "finish_reason": FINISH_REASONS[done.reason], "logprobs": None}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        name = "chat.completion" if self._chat else "text_completion"
        return {**self._head, "object": name, "choices": [choice], "usage": usage_object(done.usage)}

    async def stream(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[str, None]:
        """Server-sent events; an error in the middle is the last event before the stream ends."""
        if self._chat:
            yield self._event({"role": "assistant", "content": ""})
        try:
            with engine_errors_as_request_errors():
                async with aclosing(events):
                    async for event in events:
                        if isinstance(event, Chunk) and event.text:
                            yield self._event({"content": event.text})
                        elif isinstance(event, Done):
                            yield self._event({}, FINISH_REASONS[event.reason])
                            if self._include_usage:
                                yield self._line({"choices": [], "usage": usage_object(event.usage)})
            yield "data: [DONE]\n\n"
        except RequestError as error:
            yield f"data: {json.dumps(error_object(error))}\n\n"

    def _event(self, delta: dict[str, str], finish_reason: str | None = None) -> str:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
        if self._chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        return self._line({"choices": [choice]})

    def _line(self, fields: dict[str, Any]) -> str:
        name = "chat.completion.chunk" if self._chat else "text_completion"
        return f"data: {json.dumps({**self._head, 'object': name, **fields})}\n\n"


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def route_headers(route: Route, usage: Usage | None = None) -> dict[str, str]:
    """Which node answers and why; the cached tokens are those expected until the answer is complete."""
    cached = route.predicted_cached_tokens if usage is None else usage.cached_tokens
    return {
        "x-request-id": route.request_id,
        "x-rumormill-node": route.node,
        "x-rumormill-cached-tokens": str(cached),
        "x-rumormill-route": f"{route.decision.policy}: {route.decision.reason}",
    }


def error_object(error: RequestError) -> dict[str, Any]:
    return {
        "error": {
            "message": str(error),
            "type": error.http_type,
            "param": getattr(error, "parameter", None),
            "code": None,
        }
    }
