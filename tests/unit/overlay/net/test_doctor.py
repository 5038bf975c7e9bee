from __future__ import annotations

from pathlib import Path

import pytest

from certs.token import MeshToken
from certs.token_source import node_credentials
from overlay.core.types import Address
from overlay.net import doctor
from overlay.net.doctor import Severity, check_listening, check_multicast, check_network, check_peer
from tests.unit.overlay.net.meshes import TOKEN, Member


async def test_a_healthy_mesh_has_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISCOVERY_S", 1.0)
    token = MeshToken.make()
    me = node_credentials(token, tmp_path / "me")
    own = Address("127.0.0.1", 0)
    async with Member(tmp_path / "a", token=token, mdns=True) as a:
        findings = await check_network(me, [own], [Address("localhost", a.port)])
    assert not [finding for finding in findings if finding.severity is Severity.PROBLEM]
    answered = [finding for finding in findings if a.mesh.node_id[:8] in finding.detail]
    assert {finding.check for finding in answered} == {f"peer {a.address}"}
    assert len(answered) == 2  # by mDNS, and as a seed
    assert all(finding.severity is Severity.OK for finding in answered)


async def test_nobody_found_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISCOVERY_S", 0.3)
    me = node_credentials(MeshToken.make(), tmp_path)
    (finding,) = await doctor.check_discovery(me, [Address("127.0.0.1", 7070)])
    assert finding.severity is Severity.WARNING
    assert "--peer" in finding.remedy


async def test_every_failing_peer_names_cause_and_remedy(tmp_path: Path) -> None:
    me = node_credentials(TOKEN, tmp_path / "me")
    async with Member(tmp_path / "a", token=MeshToken.make()) as stranger:
        (wrong_mesh,) = await check_peer(stranger.address, me)
    (refused,) = await check_peer(Address("127.0.0.1", 1), me)
    (nameless,) = await check_peer(Address("nowhere.invalid", 7070), me)
    assert {finding.severity for finding in (wrong_mesh, refused, nameless)} == {Severity.PROBLEM}
    assert ("another mesh" in wrong_mesh.detail, wrong_mesh.remedy) == (True, "check --token")
    assert "nobody listens" in refused.detail
    assert "resolve" in nameless.detail
    assert all(finding.remedy for finding in (refused, nameless))


async def test_ports_are_free_taken_or_impossible(tmp_path: Path) -> None:
    async with Member(tmp_path) as a:
        assert (await check_listening(a.address)).detail == "something listens there"
    assert (await check_listening(a.address)).detail == "free"
    elsewhere = await check_listening(Address("192.0.2.1", 7070))
    assert elsewhere.severity is Severity.PROBLEM
    assert "--listen" in elsewhere.remedy


async def test_multicast_is_judged_either_way() -> None:
    finding = await check_multicast()
    assert (finding.severity is Severity.OK) == (not finding.remedy)
