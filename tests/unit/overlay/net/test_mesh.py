from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from certs.token import MeshToken
from certs.token_source import node_credentials
from overlay.core.types import Address, BlockHash, Load
from overlay.core.views import PeerState
from overlay.net import mesh
from overlay.net.errors import PeerUnreachableError
from rumormill.v1 import inference_pb2, overlay_pb2_grpc
from rumormill.v1 import overlay_pb2 as pb
from tests.unit.overlay.net.meshes import Member, eventually

HASHES = [BlockHash(h) for h in range(1, 500)]


@pytest.fixture(autouse=True)
async def nothing_is_left_and_nothing_failed(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    yield
    assert not [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left


async def forward(entry: Member, target: Member, token_ids: list[int]) -> list[int]:
    """What `target` answers to a request that `entry` sends it over the data plane."""
    stub = overlay_pb2_grpc.OverlayStub(entry.mesh.channel(target.mesh.node_id))
    call = stub.Forward(pb.ForwardRequest(prompt=inference_pb2.TokenIds(ids=token_ids)), timeout=5)
    return [token async for answer in call for token in answer.tokens.token_ids]


async def test_two_nodes_tell_each_other_what_they_have(tmp_path: Path) -> None:
    async with Member(tmp_path / "a") as a, Member(tmp_path / "b", seeds=(a.address,)) as b:
        await eventually(lambda: a.sees(b) and b.sees(a))
        a.mesh.publish(HASHES, ())
        await eventually(lambda: b.mesh.match(HASHES) == {a.mesh.node_id: len(HASHES)})
        a.mesh.publish((), HASHES[100:])
        await eventually(lambda: b.mesh.match(HASHES) == {a.mesh.node_id: 100})
        a.mesh.publish(HASHES[:7], (), cleared=True)
        await eventually(lambda: b.mesh.match(HASHES) == {a.mesh.node_id: 7})
        assert not a.mesh.match(HASHES)
        a.mesh.report_load(Load(a.mesh.own_load().epoch, 0, running=3))
        await eventually(lambda: (load := b.mesh.peers()[0].load) is not None and load.running == 3)
        assert a.mesh.gossip_bytes["sent", "delta"] > 0
        assert b.mesh.gossip_bytes["received", "delta"] > 0


async def test_what_happens_before_the_start_is_told_afterwards(tmp_path: Path) -> None:
    a = Member(tmp_path / "a")
    a.mesh.publish(HASHES, ())
    async with a, Member(tmp_path / "b", seeds=(str(a.address),)) as b:
        await eventually(lambda: b.mesh.match(HASHES) == {a.mesh.node_id: len(HASHES)})


async def test_three_nodes_meet_through_one_seed(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(Member(tmp_path / "a"))
        b = await stack.enter_async_context(Member(tmp_path / "b", seeds=(a.address,)))
        c = await stack.enter_async_context(Member(tmp_path / "c", seeds=(a.address,)))
        await eventually(lambda: a.sees(b, c) and b.sees(a, c) and c.sees(a, b))
        b.mesh.publish(HASHES, ())
        await eventually(lambda: all(m.mesh.match(HASHES).get(b.mesh.node_id) == 499 for m in (a, c)))


async def test_forwarding_works_both_ways(tmp_path: Path) -> None:
    async with Member(tmp_path / "a") as a, Member(tmp_path / "b", seeds=(a.address,)) as b:
        await eventually(lambda: a.sees(b) and b.sees(a))
        for entry, target in ((a, b), (b, a)):
            await eventually(partial(entry.mesh.is_reachable, target.mesh.node_id))
            channel = entry.mesh.channel(target.mesh.node_id)
            assert entry.mesh.channel(target.mesh.node_id) is channel
            assert await forward(entry, target, [1, 2]) == [1, 2]
        with pytest.raises(PeerUnreachableError):
            a.mesh.channel(a.mesh.node_id)


async def test_a_node_that_leaves_is_gone_at_once(tmp_path: Path) -> None:
    async with Member(tmp_path / "a") as a:
        async with Member(tmp_path / "b", seeds=(a.address,)) as b:
            await eventually(lambda: a.sees(b))
        await eventually(lambda: [peer.state for peer in a.mesh.peers()] == [PeerState.LEFT], 1.0)
        assert not a.mesh.peers()[0].connected


async def test_a_node_that_crashes_and_comes_back_on_its_port_is_believed_anew(tmp_path: Path) -> None:
    async with Member(tmp_path / "a") as a:
        b = Member(tmp_path / "b", seeds=(a.address,))
        await b.__aenter__()
        b.mesh.publish(HASHES, ())
        await eventually(lambda: a.mesh.match(HASHES) == {b.mesh.node_id: len(HASHES)})
        epoch = b.mesh.own_load().epoch
        await eventually(partial(a.mesh.is_reachable, b.mesh.node_id))
        assert await forward(a, b, [5]) == [5]
        await b.crash()
        async with Member(tmp_path / "b", port=b.port) as again:
            assert again.mesh.node_id == b.mesh.node_id
            assert again.mesh.own_load().epoch > epoch
            await eventually(lambda: a.sees(again) and again.sees(a))
            again.mesh.publish(HASHES[:3], ())
            await eventually(lambda: a.mesh.match(HASHES) == {b.mesh.node_id: 3})
            # Its leaf is a new one, but the channel to it knows that.
            leaf = ssl.DER_cert_to_PEM_cert(again.credentials.leaf()).encode()
            await eventually(partial(a.mesh._channels.knows, b.mesh.node_id, leaf))
            assert await forward(a, again, [5]) == [5]


async def test_another_token_is_told_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        Member(tmp_path / "a") as a,
        Member(tmp_path / "b", seeds=(a.address,), token=MeshToken.make()) as b,
    ):
        message = f"peer {a.address} belongs to another mesh; check --token"
        await eventually(lambda: message in caplog.messages)
        assert not a.mesh.peers()
        assert not b.mesh.peers()


async def test_a_node_may_be_its_own_seed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Member(tmp_path / "port") as free:
        port = free.port
    own = Address("127.0.0.1", port)
    async with (
        Member(tmp_path / "a", port=port, seeds=(own, "127.0.0.1:1")) as a,
        Member(tmp_path / "b", seeds=(own,)) as b,
    ):
        await eventually(lambda: a.sees(b))
        await eventually(lambda: any("nobody listens at 127.0.0.1:1" in text for text in caplog.messages))
        assert not any(str(own) in text for text in caplog.messages)


async def test_a_copy_of_a_node_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Member(tmp_path / "a") as a:
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        async with Member(tmp_path / "copy", seeds=(a.address,)) as copy:
            assert copy.mesh.node_id == a.mesh.node_id
            await eventually(lambda: any("is a copy of this one" in text for text in caplog.messages))


async def test_nodes_of_another_model_are_members_without_a_share_in_the_cache(tmp_path: Path) -> None:
    async with (
        Member(tmp_path / "a") as a,
        Member(tmp_path / "b", seeds=(a.address,), model=b"other") as b,
    ):
        await eventually(lambda: a.sees(b) and b.sees(a))
        a.mesh.publish(HASHES, ())
        a.mesh.report_load(Load(a.mesh.own_load().epoch, 0, running=3))
        await eventually(lambda: (load := b.mesh.peers()[0].load) is not None and load.running == 3)
        assert not b.mesh.match(HASHES)


async def test_a_revoked_peer_is_cut_off_and_stays_out(tmp_path: Path) -> None:
    async with Member(tmp_path / "a") as a, Member(tmp_path / "b", seeds=(a.address,)) as b:
        await eventually(lambda: a.sees(b) and b.sees(a))
        await eventually(lambda: a.mesh.is_reachable(b.mesh.node_id))
        (tmp_path / "a" / "denylist").write_text(b.mesh.node_id)
        await eventually(lambda: a.sees() and b.sees())
        assert not a.mesh.is_reachable(b.mesh.node_id)
        (tmp_path / "a" / "denylist").unlink()
        await eventually(lambda: a.sees(b) and b.sees(a))


async def test_a_mesh_changes_its_token_node_by_node(tmp_path: Path) -> None:
    """Old, then old with new accepted, then new with old accepted, then new: neighbours always meet."""
    old, new = MeshToken.make(), MeshToken.make()
    steps = ((old,), (old, new), (new, old), (new,))
    for step, (before, after) in enumerate(pairwise(steps)):
        folder = tmp_path / str(step)
        a_credentials = node_credentials(before[0], folder / "a", also_accepted=before[1:])
        b_credentials = node_credentials(after[0], folder / "b", also_accepted=after[1:])
        async with (
            Member(folder / "a", credentials=a_credentials) as a,
            Member(folder / "b", credentials=b_credentials, seeds=(a.address,)) as b,
        ):
            await eventually(lambda a=a, b=b: a.sees(b) and b.sees(a))  # type: ignore[misc]
            await eventually(partial(a.mesh.is_reachable, b.mesh.node_id))
            await eventually(partial(b.mesh.is_reachable, a.mesh.node_id))
            a.mesh.publish(HASHES, ())
            a.mesh.report_load(Load(a.mesh.own_load().epoch, 0, running=3))
            await eventually(lambda b=b: (load := b.mesh.peers()[0].load) is not None and load.running == 3)  # type: ignore[misc]
            # Their hashes are made with different keys while their own tokens differ.
            comparable = before[0] == after[0]
            if comparable:
                await eventually(lambda a=a, b=b: b.mesh.match(HASHES) == {a.mesh.node_id: 499})  # type: ignore[misc]
            assert bool(b.mesh.match(HASHES)) == comparable


async def test_new_addresses_reach_the_peers(tmp_path: Path) -> None:
    async with Member(tmp_path / "a") as a, Member(tmp_path / "b", seeds=(a.address,)) as b:
        await eventually(lambda: a.sees(b) and b.sees(a))
        moved = (Address("127.0.0.2", a.port), a.address)
        await a.mesh.readdress(moved)
        assert a.mesh.addresses == moved
        await eventually(lambda: set(b.mesh.peers()[0].addresses) >= set(moved))


async def test_a_lonely_node_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "LONELY_S", 0.1)
    async with Member(tmp_path / "a"):
        await eventually(lambda: any("rumormill doctor" in text for text in caplog.messages))


async def test_a_peer_that_cannot_be_dialled_back_is_told_and_gets_no_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = Address("127.0.0.1", 1)
    async with Member(tmp_path / "a") as a, Member(tmp_path / "b", seeds=(a.address,), told=nowhere) as b:
        await eventually(lambda: a.sees(b) and b.sees(a))
        await eventually(lambda: any("--advertise" in text for text in caplog.messages))
        with pytest.raises(PeerUnreachableError):
            a.mesh.channel(b.mesh.node_id)
        assert b.mesh.is_reachable(a.mesh.node_id)
