"""The HTTP routes of a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from engine.interface import EngineInfo
from node.admission import Admission
from node.call_budget import CallBudget
from node.errors import InvalidRequestError, RequestError
from node.grpc_errors import engine_errors_as_request_errors
from node.http.callers import Callers
from node.http.disconnect import ClientGoneError, until_disconnect
from node.http.gate import Gate
from node.http.openai import AnswerFormat, error_object, route_headers
from node.http.refusals import error_response
from node.http.schema import ChatBody, CompletionBody, GenerationBody
from node.metrics import Metrics
from node.pipeline import Pipeline
from node.request import Done, Event, Request, Route
from node.request_builder import Prompt, RequestBuilder
from node.tenants import Tenants
from node.tracing import TRACEPARENT, valid_traceparent
from node.version import VERSION

CLIENT_CLOSED_REQUEST = 499


def make_application(
    builder: RequestBuilder,
    pipeline: Pipeline,
    info: EngineInfo,
    admission: Admission,
    metrics: Metrics,
    tenants: Tenants,
    callers: Callers,
    budget: CallBudget,
) -> FastAPI:
    """The whole HTTP door as an ASGI application."""
    application = FastAPI(title="rumormill", version=VERSION, openapi_url="/openapi.json", redoc_url=None)
    door = _Door(builder, pipeline, info, tenants, callers)

    @application.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatBody, http: HttpRequest) -> Response:
        messages = [{"role": message.role, "content": message.text()} for message in body.messages]
        return await door.answer(messages, body, http, chat=True)

    @application.post("/v1/completions", response_model=None)
    async def completions(body: CompletionBody, http: HttpRequest) -> Response:
        return await door.answer(body.prompt, body, http, chat=False)

    @application.get("/v1/models")
    async def models(http: HttpRequest) -> dict[str, Any]:
        door.caller(http)
        model = {"id": info.model_name, "object": "model", "created": 0, "owned_by": "rumormill"}
        return {"object": "list", "data": [{**model, "max_model_len": info.context_tokens}]}

    @application.get("/health")
    async def health() -> JSONResponse:
        if admission.draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        return JSONResponse({"status": "ok"})

    @application.get("/metrics")
    async def prometheus(http: HttpRequest) -> Response:
        door.caller(http)
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    application.add_middleware(Gate, callers=callers, budget=budget)
    _handle_errors(application)
    return application


class _Door:
    """Answers generation requests."""

    def __init__(
        self,
        builder: RequestBuilder,
        pipeline: Pipeline,
        info: EngineInfo,
        tenants: Tenants,
        callers: Callers,
    ) -> None:
        self._tenants = tenants
        self._callers = callers
        self._builder = builder
        self._pipeline = pipeline
        self._info = info

    async def answer(
        self, prompt: Prompt, body: GenerationBody, http: HttpRequest, *, chat: bool
    ) -> Response:
        request = await asyncio.to_thread(
            self._builder.build,
            prompt,
            body.sampling(),
            model=body.model,
            caller=self._tenants.caller(self.caller(http)),
            priority=body.priority,
            traceparent=valid_traceparent(http.headers.get(TRACEPARENT)),
        )
        style = AnswerFormat(request, self._info.model_name, chat=chat, include_usage=body.include_usage)
        try:
            if body.stream:
                return await until_disconnect(http, self._streamed(request, body.timeout_s, style))
            return await until_disconnect(http, self._whole(request, body.timeout_s, style))
        except ClientGoneError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    def caller(self, http: HttpRequest) -> str:
        """Who calls, for tenant isolation; raises UnauthenticatedError or ForbiddenError."""
        return self._callers.identify(http).name

    async def _streamed(self, request: Request, timeout_s: float | None, style: AnswerFormat) -> Response:
        """Waits for the first token, so that a request that can't be served gets a status of its own."""
        events = self._pipeline.generate(request, timeout_s)
        head: list[Event] = []
        try:
            with engine_errors_as_request_errors():
                while not head or isinstance(head[-1], Route):
                    head.append(await anext(events))
        except BaseException:
            await events.aclose()
            raise
        routes = [event for event in head if isinstance(event, Route)]
        return StreamingResponse(
            style.stream(_replay(head, events)),
            media_type="text/event-stream",
            headers={**route_headers(routes[-1]), "cache-control": "no-cache"},
        )

    async def _whole(self, request: Request, timeout_s: float | None, style: AnswerFormat) -> Response:
        last: list[Done] = []

        async def noted() -> AsyncGenerator[Event, None]:
            async with aclosing(self._pipeline.generate(request, timeout_s)) as events:
                async for event in events:
                    if isinstance(event, Done):
                        last.append(event)
                    yield event

        with engine_errors_as_request_errors():
            async with aclosing(noted()) as events:
                answer = await style.whole(events)
        return JSONResponse(answer, headers=route_headers(last[0].route, last[0].usage))


async def _replay(head: list[Event], events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        for event in head:
            yield event
        async for event in events:
            yield event


def _handle_errors(application: FastAPI) -> None:
    @application.exception_handler(RequestError)
    async def refused(http: HttpRequest, error: RequestError) -> JSONResponse:
        return error_response(error)

    @application.exception_handler(RequestValidationError)
    async def malformed(http: HttpRequest, error: RequestValidationError) -> JSONResponse:
        return error_response(_invalid(error))

    @application.exception_handler(HTTPException)
    async def unrouted(http: HttpRequest, error: HTTPException) -> JSONResponse:
        failure = InvalidRequestError(f"{http.method} {http.url.path}: {error.detail}")
        return JSONResponse(error_object(failure), status_code=error.status_code)


def _invalid(error: RequestValidationError) -> InvalidRequestError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "extra_forbidden":
        return InvalidRequestError(f"{field} is not supported by this node; leave it out", field)
    return InvalidRequestError(f"{field}: {first['msg']}" if field else first["msg"], field or None)
