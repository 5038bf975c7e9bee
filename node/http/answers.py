"""One HTTP answer, of one choice or several: whole, or as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from engine.interface import EngineInfo
from node.errors import RequestError
from node.grpc_errors import engine_errors_as_request_errors
from node.http.merge import merged
from node.http.openai import error_object, route_headers, usage_object
from node.http.writers import Writer
from node.pipeline import Pipeline
from node.request import Done, Event, Request, Route


@dataclass(frozen=True, slots=True)
class Envelope:
    """What stands around the choices: `name` is the object's, `part_name` that of a stream's parts."""

    prefix: str
    name: str
    part_name: str


CHAT = Envelope("chatcmpl", "chat.completion", "chat.completion.chunk")
TEXT = Envelope("cmpl", "text_completion", "text_completion")


class Answers:
    """The choices of one answer; `requests` has `per_prompt` for each prompt, in order."""

    def __init__(
        self,
        pipeline: Pipeline,
        requests: Sequence[Request],
        writers: Sequence[Writer],
        envelope: Envelope,
        info: EngineInfo,
        *,
        per_prompt: int,
        timeout_s: float | None,
        include_usage: bool,
    ) -> None:
        self._writers = writers
        self._envelope = envelope
        self._per_prompt = per_prompt
        self._include_usage = include_usage
        self._head: dict[str, Any] = {
            "id": f"{envelope.prefix}-{requests[0].id}",
            "created": int(time.time()),
            "model": info.model_name,
            "system_fingerprint": f"fp_{info.namespace.model.hex()[:12]}",
        }
        self._done: dict[int, Done] = {}
        self._events = merged([pipeline.generate(request, timeout_s) for request in requests])

    async def whole(self) -> Response:
        """Raises RequestError."""
        with engine_errors_as_request_errors():
            async with aclosing(self._events) as events:
                async for index, event in events:
                    self._note(index, event)
                    if isinstance(event, Route):
                        continue
                    self._writers[index].parts(event)
        choices = [{"index": index, **writer.whole()} for index, writer in enumerate(self._writers)]
        answer = {**self._head, "object": self._envelope.name, "choices": choices, "usage": self._usage()}
        first = self._done[0]
        return JSONResponse(answer, headers=route_headers(first.route, first.usage))

    async def streamed(self) -> Response:
        """Waits for the first token, so that a request that can't be served gets a status of its own.

        Raises RequestError.
        """
        head: list[tuple[int, Event]] = []
        try:
            with engine_errors_as_request_errors():
                while not head or isinstance(head[-1][1], Route):
                    head.append(await anext(self._events))
        except BaseException:
            await self._events.aclose()
            raise
        routes = [event for index, event in head if isinstance(event, Route) and index == head[-1][0]]
        headers = {**route_headers(routes[-1]), "cache-control": "no-cache"}
        return StreamingResponse(self._lines(head), media_type="text/event-stream", headers=headers)

    async def _lines(self, head: Sequence[tuple[int, Event]]) -> AsyncGenerator[str, None]:
        """Server-sent events; an error in the middle is the last before the stream ends."""
        try:
            for index, writer in enumerate(self._writers):
                for part in writer.begin():
                    yield self._line([{"index": index, **part}])
            with engine_errors_as_request_errors():
                async with aclosing(self._replayed(head)) as events:
                    async for index, event in events:
                        self._note(index, event)
                        for part in self._writers[index].parts(event):
                            yield self._line([{"index": index, **part}])
            if self._include_usage:
                yield self._line([], self._usage())
            yield "data: [DONE]\n\n"
        except RequestError as error:
            yield f"data: {json.dumps(error_object(error))}\n\n"

    async def _replayed(self, head: Sequence[tuple[int, Event]]) -> AsyncGenerator[tuple[int, Event], None]:
        async with aclosing(self._events):
            for item in head:
                yield item
            async for item in self._events:
                yield item

    def _note(self, index: int, event: Event) -> None:
        if isinstance(event, Done):
            self._done[index] = event

    def _usage(self) -> dict[str, Any]:
        firsts = [self._done[index].usage for index in range(0, len(self._writers), self._per_prompt)]
        return usage_object(firsts, sum(done.usage.completion_tokens for done in self._done.values()))

    def _line(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
        fields = {**self._head, "object": self._envelope.part_name, "choices": choices}
        if self._include_usage:
            fields["usage"] = usage
        return f"data: {json.dumps(fields)}\n\n"
