"""Certificates change under load: leaves renewed, an authority replaced; no call is dropped."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from certs import pki
from certs.credentials import Credentials
from certs.directory_source import directory_credentials
from certs.roles import Role
from certs.token_source import LEAF_LIFETIME, TokenSource
from certs.trust import Denylist
from overlay.net.errors import PeerUnreachableError
from rumormill.v1 import inference_pb2, overlay_pb2_grpc
from rumormill.v1 import overlay_pb2 as pb
from tests.unit.overlay.net.meshes import TOKEN, Member, eventually


class Load:
    """Requests back and forth between two members for as long as it runs."""

    def __init__(self, a: Member, b: Member) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._pairs = ((a, b), (b, a))

    async def run(self) -> None:
        while True:
            for entry, target in self._pairs:
                await self._call(entry, target)
            await asyncio.sleep(0)

    async def _call(self, entry: Member, target: Member) -> None:
        request = pb.ForwardRequest(prompt=inference_pb2.TokenIds(ids=[1]))
        try:
            stub = overlay_pb2_grpc.OverlayStub(entry.mesh.channel(target.mesh.node_id))
            async for _ in stub.Forward(request, timeout=5):
                self.answered += 1
        except grpc.aio.AioRpcError as error:
            self.failed.append(f"{error.code().name}: {error.details()}")
        except PeerUnreachableError as error:
            self.failed.append(str(error))

    async def goes_on(self) -> None:
        until = self.answered + 50
        await eventually(lambda: self.answered >= until or bool(self.failed))
        assert not self.failed


@asynccontextmanager
async def under_load(a: Member, b: Member) -> AsyncIterator[Load]:
    await eventually(lambda: a.sees(b) and b.sees(a))
    await eventually(lambda: a.mesh.is_reachable(b.mesh.node_id) and b.mesh.is_reachable(a.mesh.node_id))
    load = Load(a, b)
    running = asyncio.create_task(load.run())
    try:
        await load.goes_on()
        yield load
        await load.goes_on()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Clock:
    """Lags behind the real time, so that a leaf of now is due for renewal when it catches up."""

    def __init__(self) -> None:
        self.behind = LEAF_LIFETIME * 3 / 4

    def __call__(self) -> datetime:
        return datetime.now(UTC) - self.behind


def renewable(clock: Clock) -> Credentials:
    key = ec.generate_private_key(ec.SECP256R1())
    return Credentials(TokenSource((TOKEN,), Role.NODE, key, Denylist(None), clock=clock))


async def test_leaves_are_renewed_under_load(tmp_path: Path) -> None:
    clocks = [Clock(), Clock()]
    async with (
        Member(tmp_path / "a", credentials=renewable(clocks[0])) as a,
        Member(tmp_path / "b", credentials=renewable(clocks[1]), seeds=(a.address,)) as b,
        under_load(a, b) as load,
    ):
        for clock, member in zip(clocks, (a, b), strict=True):
            before = member.credentials.leaf_expiry
            clock.behind = timedelta()
            await load.goes_on()
            assert member.credentials.leaf_expiry > before
        assert a.sees(b)
        assert b.sees(a)


async def test_an_authority_is_replaced_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First every bundle holds both authorities, then leaves come from the new one, then the old goes."""
    monkeypatch.setattr("certs.directory_source.CHECK_PERIOD_S", 0.0)
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        pki.init(folder, "prod")
    shutil.copy(old / "hash.key", new / "hash.key")
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        pki.issue(old, Role.NODE, folder)
    both = (old / "ca.crt").read_bytes() + (new / "ca.crt").read_bytes()
    async with (
        Member(tmp_path / "sa", credentials=directory_credentials(folders[0])) as a,
        Member(tmp_path / "sb", credentials=directory_credentials(folders[1]), seeds=(a.address,)) as b,
        under_load(a, b) as load,
    ):
        for folder in folders:
            (folder / "ca.crt").write_bytes(both)
            await load.goes_on()
        for folder in folders:
            pki.issue(new, Role.NODE, folder)
            (folder / "ca.crt").write_bytes(both)
            await load.goes_on()
        for folder in folders:
            shutil.copy(new / "ca.crt", folder / "ca.crt")
            await load.goes_on()
        await eventually(lambda: a.sees(b) and b.sees(a))
