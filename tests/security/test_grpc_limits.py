"""The gRPC door against callers that are slow, many or loud: each limit, over real TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from certs.credentials import Credentials
from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import caller_credentials, node_credentials
from node import limits
from node.call_budget import CallBudget
from node.grpc_server import GrpcServer
from tests.security.doors import open_channel
from tests.unit.overlay.net.meshes import eventually

TOKEN = MeshToken(bytes(range(32)))
WAIT = "/rumormill.v1.Inference/Generate"
ECHO = "/rumormill.v1.Inference/ListModels"
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


class Door:
    """A node's own server with two methods: one echoes, one waits."""

    def __init__(self, folder: Path) -> None:
        self.credentials = node_credentials(TOKEN, folder)
        self.server = GrpcServer("127.0.0.1", 0, self.credentials, CallBudget())
        self.waiting = 0
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Generate": grpc.unary_stream_rpc_method_handler(self._wait),
            "ListModels": grpc.unary_unary_rpc_method_handler(self._echo),
        }
        handlers = grpc.method_handlers_generic_handler("rumormill.v1.Inference", methods)
        self.server._server.add_generic_rpc_handlers((handlers,))

    async def _echo(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return request

    async def _wait(
        self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            self.waiting -= 1

    def channel(self, caller: Credentials) -> grpc.aio.Channel:
        return open_channel(self.server.port, caller.channel_credentials(), caller.any_node_name)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Door]:
    door = Door(folder)
    await door.server.start()
    try:
        yield door
    finally:
        await door.server.stop()


def client() -> Credentials:
    return caller_credentials(TOKEN, Role.CLIENT)


async def echo(
    channel: grpc.aio.Channel, request: bytes = b"x", metadata: tuple[tuple[str, str], ...] = ()
) -> grpc.StatusCode:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(ECHO)
    try:
        assert await method(request, timeout=10, metadata=metadata) == request
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def wait(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
    method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(WAIT)
    return method(b"", timeout=60)


async def is_hung_up_on(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionError, ssl.SSLError):
        async with asyncio.timeout(10):
            while await reader.read(1 << 16):
                pass
    return True


@pytest.mark.parametrize("greeting", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_handshake_that_does_not_get_on_is_cut_off(
    greeting: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRPC_HANDSHAKE_MS", 300)
    async with serving(tmp_path) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.server.port)
        writer.write(greeting)
        assert await is_hung_up_on(reader)
        writer.transport.abort()


async def test_tls_without_http2_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRPC_HANDSHAKE_MS", 300)
    caller = client()
    async with serving(tmp_path) as door:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", door.server.port, ssl=caller.ssl_context(), server_hostname=caller.any_node_name
        )
        assert await is_hung_up_on(reader)
        writer.transport.abort()


async def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GRPC_CONNECTIONS", 5)
    async with serving(tmp_path) as door:
        flood = [await asyncio.open_connection("127.0.0.1", door.server.port) for _ in range(50)]
        refused = await asyncio.gather(*(is_hung_up_on(reader) for reader, _ in flood[5:]))
        assert all(refused)
        for _, writer in flood:
            writer.transport.abort()
        async with door.channel(client()) as channel:
            assert await echo(channel) is grpc.StatusCode.OK


async def test_messages_and_metadata_are_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path) as door, door.channel(client()) as channel:
        assert await echo(channel, bytes(limits.MAX_BODY_BYTES + 1)) is EXHAUSTED
        large = (("x", "a" * limits.MAX_METADATA_BYTES),)
        assert await echo(channel, metadata=large) is EXHAUSTED
        assert await echo(channel, metadata=(("x", "a" * 1000),)) is grpc.StatusCode.OK


async def test_streams_of_a_connection_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONCURRENT_STREAMS", 3)
    async with serving(tmp_path) as door, door.channel(client()) as channel:
        assert await echo(channel) is grpc.StatusCode.OK
        calls = [wait(channel) for _ in range(10)]
        await eventually(lambda: door.waiting == 3)
        for call in calls[:5]:
            call.cancel()
        await eventually(lambda: door.waiting == 3)
        for call in calls:
            call.cancel()


async def test_calls_of_one_caller_are_bounded_over_all_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LIVE_CALLS", 4)
    greedy, other = client(), client()
    async with serving(tmp_path) as door, door.channel(greedy) as one, door.channel(greedy) as two:
        calls = [wait(channel) for channel in (one, one, two, two)]
        await eventually(lambda: door.waiting == 4)
        assert await echo(two) is EXHAUSTED
        async with door.channel(other) as channel:
            assert await echo(channel) is grpc.StatusCode.OK
        calls[0].cancel()
        await eventually(lambda: door.waiting == 3)
        assert await echo(two) is grpc.StatusCode.OK
        for call in calls:
            call.cancel()


async def test_calls_per_second_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALLS_PER_S", 0.0)
    monkeypatch.setattr(limits, "CALLS_AT_ONCE", 3.0)
    async with serving(tmp_path) as door, door.channel(client()) as channel:
        codes = [await echo(channel) for _ in range(5)]
    assert codes == [grpc.StatusCode.OK] * 3 + [EXHAUSTED] * 2


async def test_calls_of_all_callers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONCURRENT_RPCS", 3)
    async with serving(tmp_path) as door, door.channel(client()) as one, door.channel(client()) as two:
        calls = [wait(channel) for channel in (one, one, two)]
        await eventually(lambda: door.waiting == 3)
        assert await echo(one) is EXHAUSTED
        for call in calls:
            call.cancel()


async def test_revocation_ends_a_watch_on_health(tmp_path: Path) -> None:
    """The health service writes to the call itself, so that its answers don't pass the door's loop."""
    caller = client()
    async with serving(tmp_path) as door, door.channel(caller) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=10)  # type: ignore[attr-defined]
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        (tmp_path / "denylist").write_text(f"{caller.node_id}\n")
        await door.server.not_serving()
        with suppress(grpc.aio.AioRpcError):
            assert await watch.read() is grpc.aio.EOF
        assert await watch.code() is grpc.StatusCode.PERMISSION_DENIED
