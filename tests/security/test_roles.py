"""Every method with every kind of caller, over real TLS."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import Authority, issue_leaf
from certs.identity import key_id
from certs.node_key import private_pem
from certs.roles import ALLOWED_ROLES, Role
from certs.token import MeshToken
from certs.token_source import caller_credentials, node_credentials
from node.authorization import Authorization
from node.call_budget import CallBudget
from rumormill.v1 import admin_pb2, inference_pb2, overlay_pb2
from tests.security.doors import (
    ENDLESS,
    METHODS,
    UNLISTED,
    call,
    call_all,
    door,
    guarded_server,
    open_channel,
)
from tests.unit.overlay.net.meshes import Member, eventually

TOKEN = MeshToken(bytes(range(32)))
DAY, NOW = timedelta(days=1), timedelta()
OK = grpc.StatusCode.OK
DENIED = grpc.StatusCode.PERMISSION_DENIED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE

EXPECTED = {
    Role.CLIENT: {"rumormill.v1.Inference", "health", "reflection"},
    Role.NODE: {"rumormill.v1.Inference", "rumormill.v1.Overlay", "health", "reflection"},
    Role.OPERATOR: {"rumormill.v1.Inference", "rumormill.v1.Admin", "health", "reflection"},
}


def group(method: str) -> str:
    service = method.split("/")[1]
    return "health" if "health" in service else "reflection" if "reflection" in service else service


def test_the_table_knows_every_method_that_is_served() -> None:
    served = {
        f"/{file.package}.{service.name}/{method.name}"
        for file in (module.DESCRIPTOR for module in (inference_pb2, overlay_pb2, admin_pb2))
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert served <= set(ALLOWED_ROLES)
    assert {method for method in ALLOWED_ROLES if "rumormill" in method} <= served


@pytest.mark.parametrize("role", Role)
async def test_a_role_may_call_what_the_table_says_and_nothing_else(role: Role, tmp_path: Path) -> None:
    caller = caller_credentials(TOKEN, role)
    async with door(node_credentials(TOKEN, tmp_path), caller.channel_credentials()) as channel:
        statuses = await call_all(channel)
    for method, (code, text) in statuses.items():
        if method != UNLISTED and group(method) in EXPECTED[role]:
            assert (code, text) == (OK, f"{role.value}/{caller.node_id}"), method
        else:
            assert code is DENIED, method
            assert method in text
            assert "role" in text


Leaf = tuple[bytes, bytes]
"""A private key and its leaf, PEM."""


def leaf(
    authority: Authority,
    *,
    claims: Role | None = None,
    mesh_id: str = "",
    name: str = "",
    start: timedelta = NOW,
) -> Leaf:
    """What the holder of an authority's key can issue, true or not."""
    key = ec.generate_private_key(ec.SECP256R1())
    assert authority.private_key is not None
    issued = issue_leaf(
        authority.certificate(),
        authority.private_key,
        key.public_key(),
        mesh_id or authority.mesh_id,
        claims or authority.role,
        name or key_id(key.public_key()),
        DAY,
        datetime.now(UTC) + start,
    )
    return private_pem(key), issued.public_bytes(Encoding.PEM)


def authority(role: Role, token: MeshToken = TOKEN) -> Authority:
    return Authority.from_token(token, role)


BAD_CALLERS: dict[str, tuple[Callable[[], Leaf | None], grpc.StatusCode]] = {
    "no certificate": (lambda: None, UNAVAILABLE),
    "another mesh": (lambda: leaf(authority(Role.OPERATOR, MeshToken.make())), UNAVAILABLE),
    "expired": (lambda: leaf(authority(Role.OPERATOR), start=-2 * DAY), UNAVAILABLE),
    "not yet valid": (lambda: leaf(authority(Role.OPERATOR), start=2 * DAY), UNAVAILABLE),
    "node named after another": (lambda: leaf(authority(Role.NODE), name="a" * 52), UNAUTHENTICATED),
    "node as operator": (lambda: leaf(authority(Role.NODE), claims=Role.OPERATOR), UNAUTHENTICATED),
    "client as node": (lambda: leaf(authority(Role.CLIENT), claims=Role.NODE), UNAUTHENTICATED),
    "of another mesh by its name": (lambda: leaf(authority(Role.OPERATOR), mesh_id="else"), UNAUTHENTICATED),
}


@pytest.mark.parametrize("who", BAD_CALLERS)
async def test_nobody_else_may_call_anything(who: str, tmp_path: Path) -> None:
    make, expected = BAD_CALLERS[who]
    node = node_credentials(TOKEN, tmp_path)
    roots = node._source.current().trust.pem()
    made = make()
    credentials = grpc.ssl_channel_credentials(roots, *(made or ()))
    async with door(node, credentials) as channel:
        statuses = await call_all(channel)
    assert set(statuses) == set(METHODS)
    assert {code for code, _ in statuses.values()} == {expected}


@pytest.mark.parametrize("role", Role)
async def test_revocation_reaches_every_method_on_live_and_new_connections(
    role: Role, tmp_path: Path
) -> None:
    caller = caller_credentials(TOKEN, role)

    async def everything_is_refused(channel: grpc.aio.Channel) -> bool:
        statuses = await call_all(channel)
        assert set(statuses) == set(METHODS)
        return all(code is DENIED and "denylist" in text for code, text in statuses.values())

    async with guarded_server(node_credentials(TOKEN, tmp_path)) as port:
        async with open_channel(port, caller.channel_credentials(), caller.any_node_name) as channel:
            assert OK in {code for code, _ in (await call_all(channel)).values()}
            (tmp_path / "denylist").write_text(f"{caller.node_id}\n")
            assert await everything_is_refused(channel)
        async with open_channel(port, caller.channel_credentials(), caller.any_node_name) as channel:
            assert await everything_is_refused(channel)


async def test_a_damaged_denylist_still_denies_whom_it_denied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    denied, other = caller_credentials(TOKEN, Role.OPERATOR), caller_credentials(TOKEN, Role.OPERATOR)
    method = "/rumormill.v1.Admin/GetStatus"
    denylist = tmp_path / "denylist"
    denylist.write_text(f"{denied.node_id}\n")
    async with guarded_server(node_credentials(TOKEN, tmp_path)) as port:
        denylist.write_text("serial:not-a-number\n")
        for caller, expected in ((denied, DENIED), (other, OK)):
            async with open_channel(port, caller.channel_credentials(), caller.any_node_name) as channel:
                for _ in range(3):
                    assert (await call(channel, method))[0] is expected
    assert len([text for text in caplog.messages if "serial" in text]) == 1


async def test_connections_do_not_outlive_their_certificates(tmp_path: Path) -> None:
    node = node_credentials(TOKEN, tmp_path)
    caller = caller_credentials(TOKEN, Role.CLIENT)
    method = "/rumormill.v1.Inference/ListModels"
    async with door(node, caller.channel_credentials()) as channel:
        assert (await call(channel, method))[0] is OK
        node._clock = lambda: datetime.now(UTC) + 2 * DAY
        code, text = await call(channel, method)
    assert code is UNAUTHENTICATED
    assert "expired" in text


async def test_revocation_ends_live_streams(tmp_path: Path) -> None:
    caller = caller_credentials(TOKEN, Role.OPERATOR)
    async with door(node_credentials(TOKEN, tmp_path), caller.channel_credentials()) as channel:
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(ENDLESS)
        answers = watch(b"", timeout=10)
        assert await answers.read()
        (tmp_path / "denylist").write_text(f"{caller.node_id}\n")
        with suppress(grpc.aio.AioRpcError):
            while await answers.read():
                pass
        assert await answers.code() is DENIED


async def test_revocation_ends_live_gossip_for_as_long_as_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever finds out first, the door at its next frame or the mesh at its next look."""
    folder = tmp_path / "a"
    node = node_credentials(TOKEN, folder)
    guard = Authorization(node, CallBudget())
    async with (
        Member(folder, token=TOKEN, credentials=node, interceptors=(guard,)) as a,
        Member(tmp_path / "b", token=TOKEN, seeds=(a.address,)) as b,
    ):
        for _ in range(3):
            await eventually(lambda: a.sees(b) and b.sees(a))
            (folder / "denylist").write_text(b.mesh.node_id)
            await eventually(lambda: a.sees() and b.sees())
            (folder / "denylist").unlink()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
