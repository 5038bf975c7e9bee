"""mDNS for real, on the loopback interface."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from zeroconf import ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceInfo

from certs.token import MeshToken
from overlay.core.events import AddressHint, HintSource
from overlay.core.limits import MAX_MEMBERS
from overlay.core.types import Address, NodeId
from overlay.net import discovery
from overlay.net.discovery import Discovery
from tests.unit.overlay.net.meshes import Member, eventually

A, B, C = (NodeId(letter * 52) for letter in "abc")


@asynccontextmanager
async def discovering(
    node_id: NodeId, port: int, tags: tuple[str, ...] = ("tag",)
) -> AsyncIterator[list[AddressHint]]:
    hints: list[AddressHint] = []
    found = Discovery(node_id, [Address("127.0.0.1", port)], lambda: tags, hints.append)
    found.start()
    yield hints
    await found.stop()


async def test_nodes_on_loopback_hear_of_each_other() -> None:
    async with discovering(A, 7171) as a, discovering(B, 7272) as b:
        hint_a = AddressHint(Address("127.0.0.1", 7171), A, HintSource.MDNS)
        hint_b = AddressHint(Address("127.0.0.1", 7272), B, HintSource.MDNS)
        await eventually(lambda: hint_b in a and hint_a in b)
        assert not any(hint.node_id == A for hint in a)


async def test_a_mesh_that_changes_its_tag_is_followed() -> None:
    tags, hints = ["old"], list[AddressHint]()
    mine = Discovery(A, [Address("127.0.0.1", 7171)], lambda: tuple(tags), hints.append)
    mine.start()
    async with discovering(B, 7272, ("new",)) as theirs:
        await eventually(lambda: B in mine._known)
        assert not hints
        tags[:] = ["new", "old"]
        await mine.readdress([Address("127.0.0.1", 7171)])
        await eventually(lambda: bool(hints and theirs))
        assert mine.heard(B) == (Address("127.0.0.1", 7272),)
        tags[:] = ["third"]
        await mine.readdress([Address("127.0.0.1", 7171)])
        await eventually(lambda: mine.heard(B) == ())
    await mine.stop()


async def test_names_without_end_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody on the network can announce what it likes."""
    looking, most = 0, 0

    async def never(*_: object) -> bool:
        nonlocal looking, most
        looking += 1
        most = max(most, looking)
        await asyncio.sleep(0)
        looking -= 1
        return False

    monkeypatch.setattr(AsyncServiceInfo, "async_request", never)
    mine = Discovery(A, [Address("127.0.0.1", 7171)], lambda: ("tag",), lambda hint: None)
    zeroconf = Zeroconf(["127.0.0.1"])
    for number in range(2 * MAX_MEMBERS):
        name = base64.b32encode(number.to_bytes(32, "big")).decode().rstrip("=").lower()
        for _ in range(2):
            mine._service_changed(
                zeroconf, discovery.SERVICE_TYPE, f"{name}.{discovery.SERVICE_TYPE}", ServiceStateChange.Added
            )
    assert len(mine._known) == MAX_MEMBERS
    await eventually(lambda: not mine._looking)
    assert 0 < most <= discovery.RESOLVES_AT_ONCE
    await mine.stop()
    await asyncio.to_thread(zeroconf.close)


async def test_another_mesh_is_not_heard_of() -> None:
    async with discovering(A, 7171) as a, discovering(C, 7373, ("other",)) as c, discovering(B, 7272) as b:
        await eventually(lambda: bool(a and b))
        assert {hint.node_id for hint in a} == {B}
        assert not c


async def test_a_mesh_forms_by_mdns_alone(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        token = MeshToken.make()
        members = [
            await stack.enter_async_context(Member(tmp_path / name, token=token, mdns=True)) for name in "abc"
        ]
        for member in members:
            others = [other for other in members if other is not member]
            await eventually(lambda member=member, others=others: member.sees(*others))  # type: ignore[misc]


async def test_no_multicast_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(interfaces: object) -> NoReturn:
        raise OSError(19, "No such device")

    monkeypatch.setattr(discovery, "_bind", refuse)
    async with discovering(A, 7171):
        await eventually(lambda: any("--peer" in text for text in caplog.messages))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
