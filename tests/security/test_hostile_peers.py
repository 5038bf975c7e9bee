"""A member of the mesh that sends garbage, floods or stalls harms nobody but itself."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from certs.credentials import Credentials
from certs.roles import Role
from certs.token_source import TokenSource, node_credentials
from certs.trust import Denylist
from overlay.core.messages import PROTOCOL_MAJOR, Hello
from overlay.core.types import BlockHash, Epoch, NodeId
from overlay.net.codec import decode, encode
from overlay.net.errors import MalformedFrameError
from overlay.net.hash_domain import HashDomain
from overlay.net.signer import GossipSigner
from rumormill.v1 import overlay_pb2 as pb
from tests.security.mutations import mutated
from tests.unit.overlay.net.meshes import TOKEN, Member, eventually

METHOD = "/rumormill.v1.Overlay/Gossip"
SEED = 20_261_201
STREAMS = 150

HASHES = bytes(range(256)) * 8
ID = bytes(32)
SPECIMENS = [
    pb.Frame(members=pb.Members(members=[pb.Member(node_id=ID, state=pb.MEMBER_STATE_ALIVE, incarnation=1)])),
    pb.Frame(heads=pb.Heads(heads=[pb.Head(epoch=5, version=9, floor=1, count=3, signature=bytes(64))])),
    pb.Frame(want=pb.Want(epoch=5, version=9)),
    pb.Frame(delta=pb.Delta(epoch=5, version_from=1, version_to=2, added=HASHES, removed=HASHES[:80])),
    pb.Frame(snapshot=pb.Snapshot(epoch=5, version=9, chunk=0, chunks=2, hashes=HASHES)),
    pb.Frame(range_digests=pb.RangeDigests(epoch=5, version=9, digests=HASHES * 2)),
    pb.Frame(range_want=pb.RangeWant(epoch=5, version=9, ranges=b"abc")),
    pb.Frame(range_hashes=pb.RangeHashes(epoch=5, version=9, ranges=b"abc", hashes=HASHES)),
    pb.Frame(filter=pb.Filter(epoch=5, version=9, count=3, probes=4, bits=HASHES, model=b"model")),
    pb.Frame(load=pb.Load(epoch=5, sequence=1, running=2, seconds_per_prefill_token=0.1)),
    pb.Frame(probe=pb.Probe(sequence=1)),
    pb.Frame(probe_request=pb.ProbeRequest(sequence=1, target=ID)),
    pb.Frame(ack=pb.Ack(sequence=1, incarnation=2)),
    pb.Frame(nack=pb.Nack(sequence=1)),
]


def test_a_hundred_thousand_mutated_frames_decode_or_are_refused() -> None:
    rng = random.Random(SEED)
    specimens = [frame.SerializeToString() for frame in SPECIMENS]
    refused = 0
    for _ in range(100_000):
        try:
            decode(pb.Frame.FromString(mutated(rng, rng.choice(specimens))))
        except (DecodeError, MalformedFrameError):
            refused += 1
    # Both outcomes were exercised.
    assert 20_000 < refused < 95_000


@asynccontextmanager
async def raw_stream(
    attacker: Credentials, victim: Member
) -> AsyncIterator[grpc.aio.StreamStreamCall[bytes, bytes]]:
    """A gossip stream that carries whatever bytes are written."""
    options = (
        ("grpc.ssl_target_name_override", attacker.any_node_name),
        ("grpc.use_local_subchannel_pool", 1),
    )
    credentials = attacker.channel_credentials()
    async with grpc.aio.secure_channel(str(victim.address), credentials, options=options) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
        call = method()
        yield call
        call.cancel()


def hello(attacker: Credentials, model: bytes = b"model") -> bytes:
    """A Hello that a victim of the same mesh accepts from `attacker`."""
    signer = GossipSigner(attacker)
    message = Hello(
        PROTOCOL_MAJOR, 0, NodeId(attacker.node_id), Epoch(1), 0, (), model, "", "",
        signer.gossip_key, signer.certificate,
    )  # fmt: skip
    return encode(HashDomain(attacker.block_hash_key).outgoing(message)).SerializeToString()


def new_attacker() -> Credentials:
    """One that nobody has banned yet."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Credentials(TokenSource((TOKEN,), Role.NODE, key, Denylist(None)))


def are_friends(a: Member, b: Member) -> bool:
    return all(
        any(peer.node_id == other.mesh.node_id and peer.connected for peer in one.mesh.peers())
        for one, other in ((a, b), (b, a))
    )


async def bystanders_are_well(a: Member, b: Member) -> None:
    await eventually(lambda: are_friends(a, b))


async def test_a_live_node_survives_mutated_frames(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(SEED)
    specimens = [frame.SerializeToString() for frame in SPECIMENS]
    process = psutil.Process()
    async with Member(tmp_path / "a") as a, Member(tmp_path / "b", seeds=(a.address,)) as b:
        await bystanders_are_well(a, b)
        before, taken = process.memory_info().rss, a.mesh.gossip_bytes["received", "probe"]
        for _ in range(STREAMS):
            attacker = new_attacker()
            async with raw_stream(attacker, a) as call:
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(hello(attacker))
                    # Whole ones first: after the first broken frame the stream is over.
                    for specimen in rng.sample(specimens, 3):
                        await call.write(specimen)
                    for _ in range(5):
                        await call.write(mutated(rng, rng.choice(specimens)))
                    await call.done_writing()
                    while await call.read() is not grpc.aio.EOF:
                        continue
        assert a.mesh.gossip_bytes["received", "probe"] > taken
        await bystanders_are_well(a, b)
        a.mesh.publish(range(1, 100), ())
        hashes = [BlockHash(h) for h in range(1, 100)]
        await eventually(lambda: b.mesh.match(hashes) == {a.mesh.node_id: 99})
        assert process.memory_info().rss - before < 64 << 20
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_an_oversized_frame_ends_the_stream_alone(tmp_path: Path) -> None:
    attacker = node_credentials(TOKEN, tmp_path / "attacker")
    async with Member(tmp_path / "a") as a, Member(tmp_path / "b", seeds=(a.address,)) as b:
        await bystanders_are_well(a, b)
        async with raw_stream(attacker, a) as call:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(
                    pb.Frame(snapshot=pb.Snapshot(chunks=1, hashes=bytes(2 << 20))).SerializeToString()
                )
                while await call.read() is not grpc.aio.EOF:
                    continue
            assert call.done()
        assert are_friends(a, b)


async def test_a_stream_without_hello_is_ended(tmp_path: Path) -> None:
    attacker = node_credentials(TOKEN, tmp_path / "attacker")
    async with Member(tmp_path / "a") as a, raw_stream(attacker, a) as call:
        await call.write(pb.Frame(probe=pb.Probe(sequence=1)).SerializeToString())
        frames = []
        with suppress(grpc.aio.AioRpcError):
            while (data := await call.read()) is not grpc.aio.EOF:
                assert isinstance(data, bytes)
                frames.append(pb.Frame.FromString(data))
        assert [frame.WhichOneof("body") for frame in frames] == ["hello", "bye"]
        assert frames[-1].bye.reason == pb.BYE_REASON_PROTOCOL
        assert not a.mesh.peers()


async def test_a_hello_with_another_nodes_id_is_ended(tmp_path: Path) -> None:
    attacker = node_credentials(TOKEN, tmp_path / "attacker")
    victim = node_credentials(TOKEN, tmp_path / "victim")
    async with Member(tmp_path / "a") as a, raw_stream(attacker, a) as call:
        await call.write(hello(victim))
        frames = []
        with suppress(grpc.aio.AioRpcError):
            while (data := await call.read()) is not grpc.aio.EOF:
                assert isinstance(data, bytes)
                frames.append(pb.Frame.FromString(data))
        assert frames[-1].bye.reason == pb.BYE_REASON_IDENTITY
        assert not a.mesh.peers()


@pytest.mark.parametrize("greeting", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"])
async def test_connections_that_go_nowhere_leave_the_mesh_alone(greeting: bytes, tmp_path: Path) -> None:
    """Slow-loris on the TLS handshake: many open connections that never finish it."""
    async with Member(tmp_path / "a") as a:
        idle = []
        for _ in range(100):
            _, writer = await asyncio.open_connection(a.address.host, a.address.port)
            writer.write(greeting)
            idle.append(writer)
        async with Member(tmp_path / "b", seeds=(a.address,)) as b:
            await bystanders_are_well(a, b)
        for writer in idle:
            writer.transport.abort()


async def test_nothing_is_said_to_a_caller_without_a_certificate(tmp_path: Path) -> None:
    async with Member(tmp_path / "a") as a:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(a.address.host, a.address.port, ssl=context)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        said = b""
        with suppress(ssl.SSLError, ConnectionError):
            said = await reader.read()
        writer.transport.abort()
        assert said == b""
