from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from certs.credentials import Credentials
from certs.node_key import private_pem
from certs.token import MeshToken
from certs.token_source import node_credentials
from overlay.core.types import Address, NodeId
from overlay.net.errors import (
    DialError,
    NoAnswerError,
    NotRumormillError,
    RefusedError,
    WrongMeshError,
    WrongPeerError,
)
from overlay.net.first_contact import first_contact
from tests.unit.overlay.net.meshes import TOKEN

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def me(tmp_path: Path) -> Credentials:
    return node_credentials(TOKEN, tmp_path / "me")


@asynccontextmanager
async def grpc_server(credentials: Credentials) -> AsyncIterator[Address]:
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", credentials.server_credentials())
    await server.start()
    yield Address("127.0.0.1", port)
    await server.stop(None)


@asynccontextmanager
async def plain_server(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[Address]:
    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await handler(reader, writer)
        writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()
    await asyncio.gather(*served, return_exceptions=True)


async def test_a_node_is_met_by_name_and_by_ip(tmp_path: Path, me: Credentials) -> None:
    peer = node_credentials(TOKEN, tmp_path / "peer")
    async with grpc_server(peer) as address:
        for host in ("127.0.0.1", "localhost"):
            contact = await first_contact(Address(host, address.port), None, me)
            assert contact.node_id == peer.node_id
            assert contact.target == f"ipv4:127.0.0.1:{address.port}"
            assert me.identify(contact.leaf).name == peer.node_id


async def test_another_mesh_is_named_as_the_cause(tmp_path: Path, me: Credentials) -> None:
    stranger = node_credentials(MeshToken.make(), tmp_path / "peer")
    async with grpc_server(stranger) as address:
        with pytest.raises(WrongMeshError, match=f"peer {address} belongs to another mesh; check --token"):
            await first_contact(address, None, me)


async def test_a_peer_that_refuses_this_node_is_named_as_the_cause(tmp_path: Path, me: Credentials) -> None:
    """It trusts its own mesh alone, though its certificate is one this node trusts."""
    both = node_credentials(TOKEN, tmp_path / "peer", also_accepted=())
    other = node_credentials(MeshToken.make(), tmp_path / "other")
    material, foreign = both._source.current(), other._source.current()
    chain = [(private_pem(material.key), material.chains[0])]
    server = grpc.aio.server()
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials(chain, foreign.trust.pem(), require_client_auth=True)
    )
    await server.start()
    with pytest.raises(WrongMeshError, match="refuses this node's certificate"):
        await first_contact(Address("127.0.0.1", port), None, me)
    await server.stop(None)


async def test_another_node_than_meant_is_refused(tmp_path: Path, me: Credentials) -> None:
    peer = node_credentials(TOKEN, tmp_path / "peer")
    async with grpc_server(peer) as address:
        with pytest.raises(WrongPeerError):
            await first_contact(address, NodeId("a" * 52), me)


async def test_nobody_listens(me: Credentials) -> None:
    with pytest.raises(RefusedError, match="is a node running there"):
        await first_contact(Address("127.0.0.1", 1), None, me)


async def test_a_name_that_does_not_resolve(me: Credentials) -> None:
    with pytest.raises(NoAnswerError, match=r"no way to nowhere\.invalid:7070"):
        await first_contact(Address("nowhere.invalid", 7070), None, me)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says nothing at all."""


async def test_silence_ends_in_time(me: Credentials) -> None:
    async with plain_server(silent) as address:
        with pytest.raises(NoAnswerError, match="firewall"):
            await first_contact(address, None, me, timeout_s=0.2)


@pytest.mark.parametrize("handler", [http, hang_up])
async def test_another_service_is_told_apart(handler: Handler, me: Credentials) -> None:
    async with plain_server(handler) as address:
        with pytest.raises(NotRumormillError):
            await first_contact(address, None, me)


async def test_a_tls_service_that_speaks_no_http2_is_told_apart(tmp_path: Path, me: Credentials) -> None:
    context = server_context(tmp_path, node_credentials(TOKEN, tmp_path / "peer"))

    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.test ESMTP\r\n")
        await reader.read()

    async with plain_server(banner, context) as address:
        with pytest.raises(NotRumormillError, match="HTTP/2"):
            await first_contact(address, None, me)


async def test_a_denylisted_peer_is_not_met(tmp_path: Path, me: Credentials) -> None:
    peer = node_credentials(TOKEN, tmp_path / "peer")
    (tmp_path / "me" / "denylist").write_text(peer.node_id)
    async with grpc_server(peer) as address:
        with pytest.raises(DialError, match="denylist"):
            await first_contact(address, None, me)


def server_context(folder: Path, credentials: Credentials) -> ssl.SSLContext:
    material = credentials._source.current()
    path = folder / "server.pem"
    path.write_bytes(private_pem(material.key) + material.chains[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
