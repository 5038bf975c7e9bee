"""Another holder of the mesh token can't pose as a node: not as a server, not as a caller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import Authority
from certs.credentials import Credentials
from certs.node_key import private_pem
from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import node_credentials
from certs.trust import load_certificate
from overlay.core.types import Address, NodeId
from overlay.net.errors import DialError
from overlay.net.first_contact import first_contact
from tests.security.doors import call, door, open_channel

TOKEN = MeshToken(bytes(range(32)))
DAY = timedelta(days=1)


class Victim:
    """A node whose leaf is known, and an impostor with the same token and a leaf that names it."""

    def __init__(self, folder: Path) -> None:
        self.real = node_credentials(TOKEN, folder / "real")
        key = ec.generate_private_key(ec.SECP256R1())
        forged = Authority.from_token(TOKEN, Role.NODE).issue(
            key.public_key(), self.real.node_id, DAY, datetime.now(UTC)
        )
        self.forgery = (private_pem(key), forged.public_bytes(Encoding.PEM))

    @property
    def leaf(self) -> bytes:
        return load_certificate(self.real.leaf()).public_bytes(Encoding.PEM)

    def impostor(self, credentials: Credentials) -> grpc.ServerCredentials:
        roots = credentials._source.current().trust.pem()
        return grpc.ssl_server_credentials([self.forgery], roots, require_client_auth=True)


async def test_a_forged_leaf_with_the_victims_names_is_refused_by_callers(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    me = node_credentials(TOKEN, tmp_path / "me")
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", victim.impostor(me))
    await server.start()
    try:
        # Whoever has met the victim before trusts its leaf alone.
        pinned = me.channel_credentials(victim.leaf)
        async with open_channel(port, pinned, victim.real.identity.server_name) as channel:
            assert (await call(channel, "/rumormill.v1.Overlay/Forward"))[0] is grpc.StatusCode.UNAVAILABLE
        # Whoever meets it for the first time sees that the key is another one.
        for expected in (None, NodeId(victim.real.node_id)):
            with pytest.raises(DialError, match="not the id of its key"):
                await first_contact(Address("127.0.0.1", port), expected, me)
    finally:
        await server.stop(None)


async def test_a_forged_leaf_with_the_victims_names_is_refused_by_nodes(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    node = node_credentials(TOKEN, tmp_path / "node")
    roots = node._source.current().trust.pem(Role.NODE)
    async with door(node, grpc.ssl_channel_credentials(roots, *victim.forgery)) as channel:
        code, text = await call(channel, "/rumormill.v1.Overlay/Gossip")
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "not the id of its key" in text
