"""A node's gRPC doors with the real interceptor and role table, and services that only say yes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from certs.credentials import Credentials
from certs.roles import ALLOWED_ROLES
from node.authorization import Authorization, caller
from node.call_budget import CallBudget

STREAMING = {
    "/rumormill.v1.Inference/Generate",
    "/rumormill.v1.Overlay/Gossip",
    "/rumormill.v1.Overlay/Forward",
    "/rumormill.v1.Admin/WatchRoutes",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}
ENDLESS = "/rumormill.v1.Admin/WatchRoutes"
UNLISTED = "/rumormill.v1.Admin/FormatDisk"
METHODS = (*ALLOWED_ROLES, UNLISTED)


async def _say_who(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return str(caller()).encode()


async def _keep_saying_who(
    request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    yield str(caller()).encode()


async def _say_who_for_ever(
    request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    while True:
        yield str(caller()).encode()
        await asyncio.sleep(0.01)


def _handler(method: str) -> grpc.RpcMethodHandler[Any, Any]:
    if method == ENDLESS:
        return grpc.unary_stream_rpc_method_handler(_say_who_for_ever)
    if method in STREAMING:
        return grpc.unary_stream_rpc_method_handler(_keep_saying_who)
    return grpc.unary_unary_rpc_method_handler(_say_who)


def _handlers() -> dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]:
    services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for method in METHODS:
        _, service, name = method.split("/")
        services.setdefault(service, {})[name] = _handler(method)
    return services


@asynccontextmanager
async def guarded_server(credentials: Credentials) -> AsyncIterator[int]:
    """The port of a server whose every method answers with its caller's identity."""
    server = grpc.aio.server(interceptors=(Authorization(credentials, CallBudget()),))
    for service, handlers in _handlers().items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_secure_port("127.0.0.1:0", credentials.server_credentials())
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def open_channel(port: int, credentials: grpc.ChannelCredentials, server_name: str) -> grpc.aio.Channel:
    options = (
        ("grpc.ssl_target_name_override", server_name),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    )
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)


async def call(channel: grpc.aio.Channel, method: str) -> tuple[grpc.StatusCode, str]:
    """The status of one call, with the answer or the error's text."""
    try:
        if method in STREAMING:
            stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
            answering = stream(b"", timeout=10)
            async for answer in answering:
                answering.cancel()
                return grpc.StatusCode.OK, answer.decode()
        unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        return grpc.StatusCode.OK, (await unary(b"", timeout=10)).decode()
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""


async def call_all(channel: grpc.aio.Channel) -> dict[str, tuple[grpc.StatusCode, str]]:
    statuses = await asyncio.gather(*(call(channel, method) for method in METHODS))
    return dict(zip(METHODS, statuses, strict=True))


@asynccontextmanager
async def door(node: Credentials, credentials: grpc.ChannelCredentials) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a guarded server of `node`."""
    async with guarded_server(node) as port, open_channel(port, credentials, node.any_node_name) as channel:
        yield channel
