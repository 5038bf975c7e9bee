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
    trailers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, OverloadedError):
        trailers = ((RETRY_AFTER_TRAILER, str(round(error.retry_after_s * 1000))),)
    await context.abort(error.grpc_status, str(error), trailers)
