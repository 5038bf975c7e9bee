"""The clients of a node: what they say when a call fails, and what they ask again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from certs.credentials import Credentials
from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import caller_credentials, node_credentials
from node.async_client import AsyncClient
from node.client import Client, ClientError
from node.errors import DrainingError, OverloadedError, RequestError, UnavailableError
from node.grpc_errors import grpc_statuses
from rumormill.v1 import inference_pb2, inference_pb2_grpc

TOKEN = MeshToken.make()
CREDENTIALS: Credentials = caller_credentials(TOKEN, Role.CLIENT)


class Door(inference_pb2_grpc.InferenceServicer):
    """Fails as it is told to, then answers; a stream that is `held` never ends."""

    def __init__(self) -> None:
        self.errors: list[RequestError] = []
        self.asked = 0
        self.held = False

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.asked += 1
        async with grpc_statuses(context):
            if self.errors:
                raise self.errors.pop(0)
            yield inference_pb2.GenerateResponse(text="a", token_ids=request.token_ids.ids)
            if self.held:
                await asyncio.Event().wait()

    async def Tokenize(self, request: inference_pb2.TokenizeRequest, context: Any) -> Any:  # noqa: N802
        return inference_pb2.TokenizeResponse(
            token_ids=inference_pb2.TokenIds(ids=[len(request.chat.messages), len(request.prompt)])
        )

    async def ListModels(self, request: inference_pb2.ListModelsRequest, context: Any) -> Any:  # noqa: N802
        return inference_pb2.ListModelsResponse(models=[inference_pb2.Model(name="m")])


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Door, str]]:
    door, server = Door(), grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(door, server)
    credentials = node_credentials(TOKEN, tmp_path).server_credentials()
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield door, f"127.0.0.1:{port}"
    await server.stop(0)


async def text_of(client: AsyncClient) -> str:
    async with aclosing(client.generate("x")) as responses:
        return "".join([response.text async for response in responses])


async def test_what_got_no_answer_is_asked_again(served: tuple[Door, str]) -> None:
    door, address = served
    door.errors = [OverloadedError(0.01), UnavailableError("the engine restarts")]
    async with AsyncClient(address, CREDENTIALS) as client:
        assert await text_of(client) == "a"
        assert door.asked == 3


@pytest.mark.parametrize(
    "error", [DrainingError(), UnavailableError("the engine is gone"), OverloadedError(0.01)]
)
async def test_a_node_is_quoted_in_its_own_words(served: tuple[Door, str], error: RequestError) -> None:
    door, address = served
    door.errors = [error] * 9
    async with AsyncClient(address, CREDENTIALS) as client:
        with pytest.raises(ClientError) as failed:
            await text_of(client)
    assert str(failed.value) == str(error)
    assert failed.value.code == error.grpc_status


async def test_nowhere_is_told_from_a_connection_that_broke(served: tuple[Door, str]) -> None:
    door, address = served
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"127.0.0.1:{closed.getsockname()[1]}"
    async with AsyncClient(nowhere, CREDENTIALS) as client:
        with pytest.raises(ClientError, match=f"the node at {nowhere} can't be reached"):
            await text_of(client)
    door.held = True
    async with Wire(address) as wire, AsyncClient(wire.address, CREDENTIALS) as client:
        responses = client.generate("x")
        await anext(responses)
        wire.cut()
        with pytest.raises(ClientError, match=f"the connection to the node at {wire.address} broke"):
            await anext(responses)
    assert door.asked == 1, "a stream that has begun is not begun again"


class Wire:
    """A TCP connection that can be cut."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        self._writers += [writer, back]
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(_pump(reader, back), _pump(there, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def test_every_kind_of_prompt(served: tuple[Door, str]) -> None:
    _, address = served
    async with AsyncClient(address, CREDENTIALS) as client:
        await client.wait_ready()
        async with aclosing(client.generate([3, 5])) as responses:
            assert [list(response.token_ids) async for response in responses] == [[3, 5]]
        messages = [inference_pb2.ChatMessage(role="user", content="x")] * 2
        assert await client.tokenize(messages) == [2, 0]
        assert await client.tokenize("abc") == [0, 3]
        assert [model.name for model in await client.models()] == ["m"]


def test_nobody_at_home_is_said_soon() -> None:
    with Client("127.0.0.1:1", CREDENTIALS) as client, pytest.raises(ClientError, match="rumormill up"):
        client.wait_ready(0.1)
