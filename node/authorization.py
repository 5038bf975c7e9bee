"""Who calls, and whether they may: asked before every RPC and page, on connections old and new."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from certs.errors import CertificateRefusedError, CertificateRevokedError
from certs.identity import Identity
from certs.roles import Role, allowed_http_roles, allowed_roles
from node.call_budget import CallBudget
from node.errors import ForbiddenError, TooManyCallsError

CERTIFICATE_PROPERTY = "x509_pem_cert"

_caller: ContextVar[Identity] = ContextVar("rumormill_caller")

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
# Handlers take (request or request iterator, context) and return an awaitable or an async iterator.
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Behaviour = Callable[[Any, Any], Any]


class Identifier(Protocol):
    """Says who holds a certificate; raises CertificateRefusedError or CertificateRevokedError."""

    def identify(self, certificate: bytes) -> Identity: ...


class AuthenticatedContext(Protocol):
    """The part of a servicer's context that tells who calls."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


def caller() -> Identity:
    """Who made the RPC that is being handled; raises LookupError outside of one."""
    return _caller.get()


def peer_certificate(context: AuthenticatedContext) -> bytes | None:
    """The caller's leaf certificate (PEM), as TLS verified it; None without one."""
    return next(iter(context.auth_context().get(CERTIFICATE_PROPERTY, ())), None)


class Authorization(grpc.aio.ServerInterceptor):
    """Lets an RPC through only if its caller's role is in the table's row for the method."""

    def __init__(self, identifier: Identifier, budget: CallBudget) -> None:
        self._identifier = identifier
        self._budget = budget

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return self._guarded(handler, handler_call_details.method)

    def _guarded(self, handler: _Handler, method: str) -> _Handler:
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                self._guard_call(handler.unary_unary, method),
                _reading(handler.request_deserializer),
                handler.response_serializer,
            )
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(
                self._guard_call(handler.stream_unary, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                self._guard_stream(handler.unary_stream, method),
                _reading(handler.request_deserializer),
                handler.response_serializer,
            )
        assert handler.stream_stream is not None  # the fourth and last kind
        return grpc.stream_stream_rpc_method_handler(
            self._guard_stream(handler.stream_stream, method),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def _guard_call(self, behaviour: _Behaviour, method: str) -> _Behaviour:
        async def call(request: Any, context: Any) -> Any:
            await self._admit(method, request, context)
            async with self._counted(context):
                return await behaviour(request, context)

        return call

    def _guard_stream(self, behaviour: _Behaviour, method: str) -> _Behaviour:
        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            certificate = await self._admit(method, request, context)

            async def check() -> None:
                # Streams outlive revocation and certificates, so each answer is checked.
                await self._check(method, certificate, context)

            async with self._counted(context):
                answers = behaviour(request, _CheckedContext(context, check))
                if inspect.isawaitable(answers):  # the health service's Watch: it writes to the context
                    await answers
                    return
                async with aclosing(answers) as responses:
                    async for response in responses:
                        await check()
                        yield response

        return stream

    async def _admit(self, method: str, request: Any, context: Any) -> bytes:
        """The caller's certificate; ends the RPC if it may not make it."""
        certificate = peer_certificate(context)
        if certificate is None:
            await _refuse(
                context,
                grpc.StatusCode.UNAUTHENTICATED,
                "no client certificate; call with one of this mesh (see `rumormill certs --help`)",
            )
        _caller.set(await self._check(method, certificate, context))
        if isinstance(request, _Unreadable):
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, request.reason)
        return certificate

    @asynccontextmanager
    async def _counted(self, context: Any) -> AsyncIterator[None]:
        try:
            with self._budget.call(caller().uri):
                yield
        except TooManyCallsError as error:
            await _refuse(context, error.grpc_status, str(error))

    async def _check(self, method: str, certificate: bytes, context: Any) -> Identity:
        try:
            identity = self._identifier.identify(certificate)
        except CertificateRevokedError as error:
            await _refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
        except CertificateRefusedError as error:
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        roles = allowed_roles(method)
        if identity.role not in roles:
            needed = " or ".join(sorted(role.value for role in roles)) or "no"
            await _refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"{identity} may not call {method}: use a certificate or token of {needed} role",
            )
        return identity


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for a request that is no message of its method; gRPC would call it a fault of the server."""

    reason: str


def _reading(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    def read(data: bytes) -> Any:
        assert deserialize is not None
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Unreadable(f"the request is no message of this method: {error}")

    return read if deserialize is not None else None


class _CheckedContext:
    """A servicer's context that checks the caller before each message written to it."""

    def __init__(self, context: Any, check: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._check = check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        await self._check()
        await self._context.write(message)


def admit_http(role: Role, path: str) -> None:
    """Lets a caller of the HTTP door pass if the table's row for the path has its role.

    Raises ForbiddenError.
    """
    roles = allowed_http_roles(path)
    if role not in roles:
        needed = " or ".join(sorted(role.value for role in roles)) or "no"
        raise ForbiddenError(f"a key of {role.value} role may not see {path}: use one of {needed} role")


async def _refuse(context: Any, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("abort raises")
