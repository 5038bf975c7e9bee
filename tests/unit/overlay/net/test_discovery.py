"""mDNS for real, on the loopback interface."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from certs.token import MeshToken
from overlay.core.events import AddressHint, HintSource
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
    found = Discovery(node_id, [Address("127.0.0.1", port)], tags, hints.append)
    found.start()
    yield hints
    await found.stop()


async def test_nodes_on_loopback_hear_of_each_other() -> None:
    async with discovering(A, 7171) as a, discovering(B, 7272) as b:
        hint_a = AddressHint(Address("127.0.0.1", 7171), A, HintSource.MDNS)
        hint_b = AddressHint(Address("127.0.0.1", 7272), B, HintSource.MDNS)
        await eventually(lambda: hint_b in a and hint_a in b)
        assert not any(hint.node_id == A for hint in a)


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
