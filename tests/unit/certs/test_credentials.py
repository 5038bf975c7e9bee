from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from certs.credentials import Credentials
from certs.errors import (
    CertificateRefusedError,
    CertificateRevokedError,
    InsufficientTokenError,
    KeyFileError,
)
from certs.node_key import NODE_KEY_FILE, load_or_create_node_key
from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import LEAF_LIFETIME, TokenSource, caller_credentials, node_credentials
from certs.trust import Denylist, load_certificate

TOKEN = MeshToken(bytes(range(32)))
DESCENDING = (Role.OPERATOR, Role.NODE, Role.CLIENT)


class Clock:
    """Starts at the real time, which TLS goes by, unless told otherwise."""

    def __init__(self, behind: timedelta = timedelta()) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0) - behind

    def __call__(self) -> datetime:
        return self.now


def node(clock: Clock, *tokens: MeshToken) -> Credentials:
    key = ec.generate_private_key(ec.SECP256R1())
    return Credentials(TokenSource(tokens or (TOKEN,), Role.NODE, key, Denylist(None), clock=clock), clock)


def test_a_node_keeps_its_key_and_so_its_id(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state"
    first = node_credentials(TOKEN, state)
    assert node_credentials(TOKEN, state).node_id == first.node_id
    assert stat.S_IMODE((state / NODE_KEY_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert [path.name for path in state.iterdir()] == [NODE_KEY_FILE]


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_or_create_node_key(tmp_path)
    (tmp_path / NODE_KEY_FILE).chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        load_or_create_node_key(tmp_path)


def test_a_damaged_key_is_refused_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / NODE_KEY_FILE
    path.touch(0o600)
    path.write_text("-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(KeyFileError):
        load_or_create_node_key(tmp_path)
    assert path.read_text() == "-----BEGIN PRIVATE KEY-----\n"


def test_an_unwritable_folder_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeyFileError, match="--state-dir"):
        load_or_create_node_key(tmp_path / "file")


def test_leaves_are_renewed_at_a_third_of_their_life() -> None:
    clock = Clock()
    credentials = node(clock)
    first, expiry = credentials.revision, credentials.leaf_expiry
    assert expiry - clock.now == LEAF_LIFETIME
    clock.now += LEAF_LIFETIME * 2 / 3 - timedelta(seconds=1)
    assert credentials.revision is first
    clock.now += timedelta(seconds=1)
    assert credentials.revision is not first
    assert credentials.leaf_expiry - clock.now == LEAF_LIFETIME
    assert credentials.identify(credentials.leaf()).name == credentials.node_id


def test_a_client_token_makes_no_node(tmp_path: Path) -> None:
    with pytest.raises(InsufficientTokenError, match="node token"):
        node_credentials(TOKEN.for_role(Role.CLIENT), tmp_path)
    with pytest.raises(InsufficientTokenError):
        caller_credentials(TOKEN.for_role(Role.NODE), Role.OPERATOR)


def test_signatures_bind_to_the_leaf() -> None:
    clock = Clock()
    signer, other = node(clock), node(clock)
    signature = signer.sign(b"message")
    assert other.verify(signer.leaf(), signature, b"message").name == signer.node_id
    for leaf, message in [(signer.leaf(), b"massage"), (other.leaf(), b"message")]:
        with pytest.raises(CertificateRefusedError):
            other.verify(leaf, signature, message)


def test_the_denylist_takes_effect_without_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    peer = node(clock)
    mine = node_credentials(TOKEN, tmp_path)
    mine._clock = clock
    assert mine.identify(peer.leaf()).name == peer.node_id
    denylist = tmp_path / "denylist"
    denylist.write_text(f"# stolen\n{peer.node_id}  # on Monday\n")
    with pytest.raises(CertificateRevokedError, match="denylist"):
        mine.identify(peer.leaf())
    denylist.write_text(f"serial:{peer.identity.serial_number:X}\n")
    with pytest.raises(CertificateRevokedError):
        mine.identify(peer.leaf())
    denylist.unlink()
    assert mine.identify(peer.leaf())


async def echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return request


@asynccontextmanager
async def served(credentials: Credentials) -> AsyncIterator[int]:
    server = grpc.aio.server()
    server.add_registered_method_handlers("test.Echo", {"Call": grpc.unary_unary_rpc_method_handler(echo)})
    port = server.add_secure_port("127.0.0.1:0", credentials.server_credentials())
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def call(port: int, credentials: grpc.ChannelCredentials, name: str) -> bytes:
    options = (("grpc.ssl_target_name_override", name),)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Echo/Call")
        return await method(b"hello", timeout=5)


@pytest.mark.parametrize(
    ("holder", "role"),
    [(holder, role) for i, holder in enumerate(DESCENDING) for role in DESCENDING[i:]],
)
async def test_every_role_that_a_token_gives_reaches_a_node(holder: Role, role: Role) -> None:
    caller = caller_credentials(TOKEN.for_role(holder), role)
    async with served(node(Clock())) as port:
        assert await call(port, caller.channel_credentials(), caller.any_node_name) == b"hello"


async def test_a_node_token_serves_operators_it_can_only_recognise() -> None:
    caller = caller_credentials(TOKEN, Role.OPERATOR)
    async with served(node(Clock(), TOKEN.for_role(Role.NODE))) as port:
        assert await call(port, caller.channel_credentials(), caller.any_node_name) == b"hello"


async def test_both_tokens_are_accepted_during_rotation() -> None:
    old, new = MeshToken.make(), MeshToken.make()
    async with served(node(Clock(), new, old)) as port:
        for token in (old, new):
            caller = caller_credentials(token, Role.CLIENT)
            assert await call(port, caller.channel_credentials(), caller.any_node_name) == b"hello"
        stranger = caller_credentials(MeshToken.make(), Role.CLIENT)
        with pytest.raises(grpc.aio.AioRpcError):
            await call(port, stranger.channel_credentials(), stranger.any_node_name)


async def test_a_pinned_leaf_is_the_only_one_accepted() -> None:
    peer, impostor = node(Clock()), node(Clock())
    caller = caller_credentials(TOKEN, Role.CLIENT)
    async with served(impostor) as port:
        with pytest.raises(grpc.aio.AioRpcError):
            await call(port, caller.channel_credentials(leaf_pem(peer)), peer.identity.server_name)
        credentials = caller.channel_credentials(leaf_pem(impostor))
        assert await call(port, credentials, impostor.identity.server_name) == b"hello"


async def test_a_renewed_leaf_is_served_without_a_restart() -> None:
    clock = Clock(behind=LEAF_LIFETIME * 3 / 4)
    credentials = node(clock)
    async with served(credentials) as port:
        before = await served_serial(port)
        assert before == credentials.identity.serial_number
        clock.now = datetime.now(UTC)
        after = await served_serial(port)
    assert before != after
    assert after == load_certificate(credentials.leaf()).serial_number


def leaf_pem(credentials: Credentials) -> bytes:
    return load_certificate(credentials.leaf()).public_bytes(Encoding.PEM)


async def served_serial(port: int) -> int:
    caller = caller_credentials(TOKEN, Role.CLIENT)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=caller.ssl_context(), server_hostname=caller.any_node_name
    )
    try:
        assert await reader.read(9)
        tls = writer.get_extra_info("ssl_object")
        return load_certificate(tls.getpeercert(binary_form=True)).serial_number
    finally:
        # gRPC never answers a TLS close, so a polite one would hang.
        writer.transport.abort()
