"""The HTTP routes of a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from engine.interface import EngineInfo
from engine.tokenizer import Tokenizer
from node.admission import Admission
from node.authorization import admit_http
from node.call_budget import CallBudget
from node.errors import InvalidRequestError, RequestError
from node.http.callers import Callers
from node.http.docs_page import docs_page
from node.http.door import Door
from node.http.gate import Gate
from node.http.openai import error_object
from node.http.refusals import error_response
from node.http.schema import ChatBody, CompletionBody
from node.metrics import Metrics
from node.pipeline import Pipeline
from node.request_builder import RequestBuilder
from node.tenants import Tenants
from node.version import VERSION

EXPOSED_HEADERS = ("x-request-id", "x-rumormill-node", "x-rumormill-cached-tokens", "x-rumormill-route")


def make_application(
    builder: RequestBuilder,
    pipeline: Pipeline,
    info: EngineInfo,
    tokenizer: Tokenizer,
    admission: Admission,
    metrics: Metrics,
    tenants: Tenants,
    callers: Callers,
    budget: CallBudget,
    cors_origins: Sequence[str] = (),
) -> FastAPI:
    """The whole HTTP door as an ASGI application; pages of `cors_origins` may call it from a browser."""
    application = FastAPI(
        title="rumormill",
        version=VERSION,
        description="A node of a mesh of language model servers; its API is OpenAI's.",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    door = Door(builder, pipeline, info, tokenizer, tenants, callers)

    @application.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatBody, http: HttpRequest) -> Response:
        return await door.chat(body, http)

    @application.post("/v1/completions", response_model=None)
    async def completions(body: CompletionBody, http: HttpRequest) -> Response:
        return await door.complete(body, http)

    @application.post("/v1/embeddings", response_model=None, include_in_schema=False)
    async def embeddings() -> Response:
        raise InvalidRequestError("this node generates text; it has no embeddings")

    served = {
        "id": info.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "rumormill",
        "max_model_len": info.context_tokens,
    }

    @application.get("/v1/models")
    async def models(http: HttpRequest) -> dict[str, Any]:
        door.caller(http)
        return {"object": "list", "data": [served]}

    @application.get("/v1/models/{model:path}")
    async def model(model: str, http: HttpRequest) -> dict[str, Any]:
        door.caller(http)
        builder.check_model(model)
        return served

    @application.get("/health")
    async def health() -> JSONResponse:
        if admission.draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        return JSONResponse({"status": "ok"})

    @application.get("/metrics")
    async def prometheus(http: HttpRequest) -> Response:
        admit_http(callers.identify(http).role, "/metrics")
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @application.get("/docs", response_model=None, include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(application.openapi()))

    application.add_middleware(Gate, callers=callers, budget=budget)
    if cors_origins:
        application.add_middleware(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    _handle_errors(application)
    return application


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
