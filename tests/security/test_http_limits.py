"""The HTTP door against clients that are slow, many, loud or deep: each limit, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from node import limits
from node.errors import StartupError
from node.http.patience import PatientProtocol
from node.http.server import HttpServer
from node.http.tls import HttpCertificate
from tests.unit.overlay.net.meshes import eventually

SOON_S = 10.0
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """/health answers at once, /wait never, /flood without end; anything else reads the body first."""
    if scope["path"] == "/wait":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    if scope["path"] != "/health":
        while (await receive()).get("more_body"):
            pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/flood":
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            await asyncio.sleep(0)
        return
    await send({"type": "http.response.body", "body": b"well"})


class Client:
    """One connection that says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> bytes:
        """Everything until the server hangs up."""
        try:
            async with asyncio.timeout(SOON_S):
                return await self.reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""

    def hang_up(self) -> None:
        self.writer.transport.abort()


class Door:
    """A server, and its clients of one test."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.clients: list[Client] = []

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port, ssl=tls))
        self.clients.append(client)
        return client

    async def is_well(self, tls: ssl.SSLContext | None = None) -> bool:
        client = await self.connect(tls)
        client.say(HEALTH)
        return b"well" in await client.answer()

    @property
    def connections(self) -> list[PatientProtocol]:
        return list(self.server._server._connections())

    @property
    def requests(self) -> int:
        return len(self.server._server.server_state.tasks)


@asynccontextmanager
async def serving(certificate: HttpCertificate | None = None) -> AsyncIterator[Door]:
    server = HttpServer(application, socket.create_server(("127.0.0.1", 0)), certificate)
    await server.start()
    door = Door(server)
    try:
        yield door
    finally:
        for client in door.clients:
            client.hang_up()
        await server.stop()


REQUEST = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n"


@pytest.mark.parametrize(
    ("limit", "said"),
    [("HEADER_S", b""), ("HEADER_S", REQUEST), ("BODY_S", REQUEST + b"\r\n"), ("BODY_S", REQUEST + b"\r\nx")],
)
async def test_a_slow_request_is_cut_off_however_it_dribbles(
    limit: str, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, limit, 0.3)
    async with serving() as door:
        client = await door.connect()
        client.say(said)

        async def dribble() -> None:
            while not client.writer.is_closing():
                client.say(b"a")
                await asyncio.sleep(0.02)

        dribbling = asyncio.create_task(dribble())
        assert await client.answer() == b""
        dribbling.cancel()
        assert await door.is_well()


async def test_a_request_in_time_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadlines end with their phases: an answer may take as long as it takes."""
    for limit in ("HEADER_S", "BODY_S"):
        monkeypatch.setattr(limits, limit, 0.2)
    async with serving() as door:
        client = await door.connect()
        client.say(b"GET /wait HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await client.reader.read()


async def test_a_connection_is_kept_for_the_next_request_and_not_for_ever() -> None:
    async with serving() as door:
        client = await door.connect()
        for _ in range(2):
            client.say(HEALTH.replace(b"close", b"keep-alive"))
            assert b"well" in await client.reader.readuntil(b"\r\n0\r\n\r\n")
        (kept,) = door.connections
        assert kept.timeout_keep_alive == limits.KEEP_ALIVE_S
        kept.timeout_keep_alive_handler()
        assert await client.reader.read() == b""


async def test_a_client_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_S", 0.3)
    async with serving() as door:
        client = await door.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # every socket's can
        client.say(b"GET /flood HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await eventually(lambda: len(door.connections) == 1)
        await eventually(lambda: len(door.connections) == 0)


async def test_a_flood_of_idle_connections_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HTTP_CONNECTIONS", 20)
    async with serving() as door:
        for _ in range(100):
            await door.connect()
        assert await door.is_well()
        await eventually(lambda: len(door.connections) <= 20)


async def test_requests_in_progress_are_bounded_and_never_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HTTP_CONNECTIONS", 5)
    async with serving() as door:
        busy = [await door.connect() for _ in range(5)]
        for client in busy:
            client.say(b"GET /wait HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await eventually(lambda: door.requests == 5)
        refused = await door.connect()
        refused.say(HEALTH)
        assert await refused.answer() == b""
        assert door.requests == 5
        busy[0].hang_up()
        await eventually(lambda: len(door.connections) == 4)
        assert await door.is_well()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * (limits.MAX_HEADER_BYTES + 1),
        b"GET /" + b"a" * (limits.MAX_HEADER_BYTES + 1),
        b"\x16\x03\x01\x02\x00\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: \x00\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_and_hung_up_on(said: bytes) -> None:
    async with serving() as door:
        client = await door.connect()
        client.say(said)
        assert b"400 Bad Request" in await client.answer()
        assert await door.is_well()


# -- TLS ------------------------------------------------------------------------------------------


def make_certificate(folder: Path, name: str) -> HttpCertificate:
    certificate, key = folder / "tls.crt", folder / "tls.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-subj", f"/CN={name}", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    key.chmod(0o600)
    time = iter(range(1_000_000))
    return HttpCertificate(certificate, key, monotonic=lambda: float(next(time)))


def any_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def served_name(door: Door) -> bytes:
    client = await door.connect(any_server())
    der = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(der, bytes)
    return der


async def test_handshakes_that_do_not_get_on_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_HANDSHAKE_S", 0.3)
    async with serving(make_certificate(tmp_path, "a")) as door:
        client = await door.connect()
        client.say(b"\x16\x03\x01\x02\x00\x01")
        assert await client.answer() == b""


async def test_a_flood_of_handshakes_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_HTTP_CONNECTIONS", 20)
    async with serving(make_certificate(tmp_path, "a")) as door:
        for _ in range(100):
            await door.connect()
        assert await door.is_well(any_server())
        (acceptor,) = door.server._server.servers
        assert len(acceptor._handshakes) <= 20  # type: ignore[attr-defined]  # it is this project's own


async def test_a_renewed_certificate_is_served_and_a_damaged_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(make_certificate(tmp_path, "old")) as door:
        old = await served_name(door)
        make_certificate(tmp_path, "new")
        new = await served_name(door)
        assert b"new" in new
        assert old != new
        (tmp_path / "tls.crt").write_text("half of i")
        for _ in range(3):
            assert await served_name(door) == new
        assert caplog.text.count("stays as it was") == 1


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    make_certificate(tmp_path, "a")
    (tmp_path / "tls.key").chmod(0o644)
    with pytest.raises(StartupError, match="chmod 600"):
        HttpCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")
