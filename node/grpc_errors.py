"""Turns this package's and the engine's errors into gRPC statuses, in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn, TypeVar

import grpc.aio

from engine import errors as engine_errors
from node.admission import SHORTEST_RETRY_SECONDS
from node.errors import InvalidRequestError, OverloadedError, RequestError, UnavailableError

RETRY_AFTER_TRAILER = "retry-after-ms"
PUSHBACK_TRAILER = "grpc-retry-pushback-ms"
"""The same, as gRPC's own retries read it (gRFC A6)."""

ERROR_TRAILER = "rumormill-error"
"""On everything that a node itself refuses; a status without it is the connection's."""

Req = TypeVar("Req")
Resp = TypeVar("Resp")


@contextmanager
def engine_errors_as_request_errors() -> Iterator[None]:
    """What the engine refuses is the request's fault; that it is gone is not."""
    try:
        yield
    except engine_errors.QueueFullError as error:  # several got past admission at once
        raise OverloadedError(SHORTEST_RETRY_SECONDS) from error
    except engine_errors.RequestError as error:
        raise InvalidRequestError(str(error)) from error
    except engine_errors.EngineError as error:
        raise UnavailableError(str(error)) from error


@asynccontextmanager
async def grpc_statuses(context: grpc.aio.ServicerContext[Req, Resp]) -> AsyncIterator[None]:
    """Ends the call with the right status and a one-line message when the body raises a known error."""
    try:
        with engine_errors_as_request_errors():
            yield
    except RequestError as error:
        await abort(context, error)


async def abort(context: grpc.aio.ServicerContext[Req, Resp], error: RequestError) -> NoReturn:
    trailers: tuple[tuple[str, str], ...] = ((ERROR_TRAILER, error.http_type),)
    if isinstance(error, OverloadedError):
        milliseconds = str(round(error.retry_after_s * 1000))
        trailers += ((RETRY_AFTER_TRAILER, milliseconds), (PUSHBACK_TRAILER, milliseconds))
    await context.abort(error.grpc_status, str(error), trailers)
