"""The doctor's looks at ports, peers and their clocks, on real meshes of loopback."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import caller_credentials, node_credentials
from node.doctor import peers
from node.doctor.check import Check, Severity
from node.doctor.examination import examine
from node.doctor.peers import check_discovery, check_peer
from node.doctor.ports import check_port
from overlay.core.types import Address
from overlay.net.clocks import Clocks
from overlay.net.errors import SeedError
from tests.unit.overlay.net.meshes import TOKEN, Member, eventually


async def test_a_healthy_mesh_has_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "DISCOVERY_S", 1.0)
    token = MeshToken.make()
    me = node_credentials(token, tmp_path / "me")
    async with Member(tmp_path / "a", token=token, mdns=True) as a:
        checks = await examine(
            me,
            "127.0.0.1",
            a.port,
            1,
            known_mesh=True,
            own_certificate=True,
            model="smollm2",
            peers=[f"localhost:{a.port}"],
            mdns=True,
        )
    bad = [check for check in checks if check.severity is Severity.PROBLEM]
    assert not [check for check in bad if "port 127.0.0.1:1" not in check.name]
    told = {check.name: check.detail for check in checks if a.mesh.node_id[:8] in check.detail}
    assert set(told) == {
        f"gRPC port {a.address}",
        f"node {a.mesh.node_id[:8]}",  # by mDNS
        f"peer {a.address}",
    }
    assert "clock is right" in told[f"peer {a.address}"]


async def test_a_peer_that_is_no_address_is_refused(tmp_path: Path) -> None:
    me = node_credentials(TOKEN, tmp_path)
    with pytest.raises(SeedError, match="HOST:PORT"):
        await examine(
            me, "127.0.0.1", 1, 1, known_mesh=True, own_certificate=False, model="", peers=["a:b"], mdns=False
        )


async def test_nobody_found_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "DISCOVERY_S", 0.3)
    me = node_credentials(MeshToken.make(), tmp_path)
    (check,) = await check_discovery(me, (Address("127.0.0.1", 7070),))
    assert check.severity is Severity.WARNING
    assert "--peer" in check.remedy


async def test_every_failing_peer_names_cause_and_remedy(tmp_path: Path) -> None:
    me = node_credentials(TOKEN, tmp_path / "me")
    async with Member(tmp_path / "a", token=MeshToken.make()) as stranger:
        (wrong_mesh,) = await check_peer(stranger.address, me)
    (refused,) = await check_peer(Address("127.0.0.1", 1), me)
    (nameless,) = await check_peer(Address("nowhere.invalid", 7070), me)
    assert {check.severity for check in (wrong_mesh, refused, nameless)} == {Severity.PROBLEM}
    assert ("another mesh" in wrong_mesh.detail, wrong_mesh.remedy) == (True, "check --token")
    assert "nobody listens" in refused.detail
    assert "resolve" in nameless.detail
    assert all(check.remedy for check in (refused, nameless))


@pytest.mark.parametrize(
    ("ahead_s", "severity", "says"),
    [(0, Severity.OK, "right to 0."), (90, Severity.WARNING, "ahead of"), (-90, Severity.WARNING, "behind")],
)
async def test_a_peers_clock_is_compared(
    ahead_s: float, severity: Severity, says: str, tmp_path: Path
) -> None:
    me = node_credentials(TOKEN, tmp_path / "me")
    async with Member(tmp_path / "a") as a:
        a.mesh._driver._clocks = Clocks(lambda: time.time() + ahead_s)
        (check,) = await check_peer(a.address, me)
        assert not a.mesh.peers(), "the doctor is no peer"
    assert (check.severity, bool(check.remedy)) == (severity, severity is not Severity.OK)
    assert says in check.detail


async def test_who_may_not_gossip_still_learns_whether_a_peer_answers(tmp_path: Path) -> None:
    """Whoever has a client's certificate alone."""
    me = caller_credentials(TOKEN, Role.CLIENT)
    async with Member(tmp_path / "a") as a:
        (check,) = await check_peer(a.address, me)
    assert check.severity is Severity.OK
    assert "doesn't tell its time" in check.detail


async def test_a_node_tells_once_of_a_peer_with_another_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Member(tmp_path / "a") as a:
        a.mesh._driver._clocks = Clocks(lambda: time.time() + 3000)
        async with Member(tmp_path / "b", seeds=(a.address,)) as b:
            await eventually(lambda: b.sees(a))
            told = f"the clock of node {a.mesh.node_id[:8]} is 3000 s ahead of this machine's"
            await eventually(lambda: any(told in text for text in caplog.messages))
            # Another address makes another Hello.
            await a.mesh.readdress((Address("127.0.0.2", a.port), a.address))
            await eventually(lambda: len(b.mesh.peers()[0].addresses) > 1)
    assert len([text for text in caplog.messages if told in text]) == 1


async def test_ports_are_free_taken_or_impossible(tmp_path: Path) -> None:
    me, stranger = (
        node_credentials(TOKEN, tmp_path / "me"),
        node_credentials(MeshToken.make(), tmp_path / "s"),
    )
    async with Member(tmp_path / "a") as a:
        mine = await check_port("gRPC", a.address, me)
        theirs = await check_port("gRPC", a.address, stranger)
    assert (mine.severity, a.mesh.node_id[:8] in mine.detail) == (Severity.OK, True)
    assert (theirs.severity, "another mesh" in theirs.detail) == (Severity.WARNING, True)
    assert (await check_port("gRPC", a.address, me)).detail == "free"
    elsewhere = await check_port("gRPC", Address("192.0.2.99", 7070), me)
    assert elsewhere.severity is Severity.PROBLEM
    assert "--listen" in elsewhere.remedy


async def test_another_program_at_a_nodes_port_is_a_problem(tmp_path: Path) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.test\r\n")
        await writer.drain()
        writer.transport.abort()

    me = node_credentials(TOKEN, tmp_path)
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    check: Check = await check_port("gRPC", address, me)
    server.close()
    await server.wait_closed()
    assert check.severity is Severity.PROBLEM
    assert "--grpc-port" in check.remedy
