from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.core import limits
from overlay.core import messages as msg
from overlay.core.types import Address, Epoch, Load, NodeId, Version
from overlay.net.codec import decode, encode, frame_kind, node_id_bytes, node_id_from_bytes
from overlay.net.errors import MalformedFrameError
from rumormill.v1 import overlay_pb2 as pb

U64 = (1 << 64) - 1
node_ids = st.binary(min_size=32, max_size=32).map(node_id_from_bytes)
origins = st.none() | node_ids
epochs = st.integers(0, limits.MAX_EPOCH).map(Epoch)
versions = st.integers(0, U64).map(Version)
hashes = st.lists(st.integers(0, U64), max_size=40).map(lambda values: np.array(values, dtype=np.uint64))
hosts = st.sampled_from(["127.0.0.1", "::1", "fe80::1%eth0", "node-1.example_net.test"])
addresses = st.lists(st.builds(Address, hosts, st.integers(1, 65535)), max_size=16).map(tuple)
text = st.text(st.characters(categories=("L", "N", "P", "S")), max_size=200)
ranges = st.lists(st.integers(0, 255), unique=True, max_size=256).map(bytes)
u32 = st.integers(0, (1 << 32) - 1)
seconds = st.floats(0, 1e9)
keys = st.binary(max_size=32)
certificates = st.binary(max_size=900)
signatures = st.binary(max_size=64)

heads = st.builds(
    msg.Head, origins, epochs, versions, versions, st.integers(0, limits.MAX_HASHES_PER_ORIGIN),
    st.integers(0, U64), st.integers(0, U64), signatures, keys, certificates,
)  # fmt: skip
loads = st.builds(
    Load, epochs, st.integers(0, U64), u32, u32, st.integers(0, U64), seconds, seconds, u32,
    st.integers(0, U64), st.integers(0, U64), st.booleans(), st.booleans(),
)  # fmt: skip
members = st.builds(
    msg.Member,
    node_ids,
    st.sampled_from(msg.MemberState),
    st.integers(0, limits.MAX_EPOCH),
    addresses,
    origins,
)
chunks = st.integers(1, limits.MAX_SNAPSHOT_CHUNKS).flatmap(
    lambda total: st.tuples(st.integers(0, total - 1), st.just(total))
)


def delta(origin: NodeId | None, epoch: Epoch, versions: list[int], added: Any, removed: Any) -> msg.Delta:
    first, last = sorted(versions)
    return msg.Delta(origin, epoch, Version(first), Version(last), added, removed)


MESSAGES: dict[type, st.SearchStrategy[Any]] = {
    msg.Hello: st.builds(
        msg.Hello, u32, u32, node_ids, epochs, st.integers(0, U64), addresses,
        st.binary(max_size=64), text, text, keys, certificates,
    ),
    msg.Members: st.builds(msg.Members, st.lists(members, max_size=8).map(tuple)),
    msg.Heads: st.builds(msg.Heads, st.lists(heads, max_size=8).map(tuple)),
    msg.Want: st.builds(msg.Want, origins, epochs, versions),
    msg.Delta: st.builds(
        delta, origins, epochs, st.lists(st.integers(0, U64), min_size=2, max_size=2, unique=True),
        hashes, hashes,
    ),
    msg.Snapshot: st.builds(
        lambda o, e, v, c, h: msg.Snapshot(o, e, v, c[0], c[1], h), origins, epochs, versions, chunks, hashes
    ),
    msg.RangeDigests: st.builds(
        lambda o, e, v, seed: msg.RangeDigests(
            o, e, v, np.random.default_rng(seed).integers(0, U64, (256, 2), np.uint64, endpoint=True)
        ),
        origins, epochs, versions, st.integers(0, 1000),
    ),
    msg.RangeWant: st.builds(msg.RangeWant, origins, epochs, versions, ranges),
    msg.RangeHashes: st.builds(msg.RangeHashes, origins, epochs, versions, ranges, hashes),
    msg.Filter: st.builds(
        msg.Filter, origins, epochs, versions,
        st.integers(0, limits.MAX_HASHES_PER_ORIGIN), st.integers(1, 32),
        st.binary(min_size=1, max_size=900), st.binary(max_size=64), signatures, keys, certificates,
    ),
    msg.LoadReport: st.builds(msg.LoadReport, origins, loads),
    msg.Probe: st.builds(msg.Probe, st.integers(0, U64)),
    msg.ProbeRequest: st.builds(msg.ProbeRequest, st.integers(0, U64), node_ids),
    msg.Ack: st.builds(msg.Ack, st.integers(0, U64), st.integers(0, U64)),
    msg.Nack: st.builds(msg.Nack, st.integers(0, U64)),
    msg.Bye: st.builds(msg.Bye, st.sampled_from(msg.ByeReason), text),
}  # fmt: skip


def same(left: Any, right: Any) -> bool:
    """Equality of messages, arrays by value and type."""
    if type(left) is not type(right):
        return False
    for field in fields(left):
        mine, theirs = getattr(left, field.name), getattr(right, field.name)
        if isinstance(mine, np.ndarray):
            if mine.dtype != theirs.dtype or not np.array_equal(mine, theirs):
                return False
        elif mine != theirs:
            return False
    return True


@pytest.mark.parametrize("kind", MESSAGES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip(kind: type, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    frame = pb.Frame.FromString(encode(message).SerializeToString())
    assert frame_kind(frame) != "unknown"
    decoded = decode(frame)
    assert same(decoded, message)


def test_every_message_has_a_round_trip_test() -> None:
    assert set(MESSAGES) == set(get_args(msg.Message))


def test_hashes_travel_as_little_endian_words() -> None:
    frame = encode(msg.Snapshot(None, Epoch(1), Version(1), 0, 1, np.array([1, 1 << 63], dtype=np.uint64)))
    assert frame.snapshot.hashes == bytes([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128])


def test_node_ids_have_two_forms() -> None:
    assert node_id_bytes(node_id_from_bytes(bytes(range(32)))) == bytes(range(32))


def test_a_kind_of_a_later_version_is_ignored() -> None:
    frame = pb.Frame.FromString(b"\xfa\x07\x03abc")  # field 127
    assert frame_kind(frame) == "unknown"
    assert decode(frame) is None


ID = bytes(32)
WORD = bytes(8)
ALIVE = pb.Member(node_id=ID, state=pb.MEMBER_STATE_ALIVE)
HALF_ALIVE = pb.Member(node_id=ID, state=pb.MEMBER_STATE_ALIVE, reporter=b"x")
TOO_BIG = {
    "hello.addresses": pb.Frame(hello=pb.Hello(node_id=ID, addresses=[pb.Address(host="h", port=1)] * 17)),
    "hello.host": pb.Frame(hello=pb.Hello(node_id=ID, addresses=[pb.Address(host="h" * 256, port=1)])),
    "hello.port": pb.Frame(hello=pb.Hello(node_id=ID, addresses=[pb.Address(host="h", port=65536)])),
    "hello.no-port": pb.Frame(hello=pb.Hello(node_id=ID, addresses=[pb.Address(host="h")])),
    "hello.control": pb.Frame(hello=pb.Hello(node_id=ID, addresses=[pb.Address(host="a\nb", port=1)])),
    "hello.model": pb.Frame(hello=pb.Hello(node_id=ID, model=bytes(65))),
    "hello.name": pb.Frame(hello=pb.Hello(node_id=ID, model_name="x" * 257)),
    "hello.name-control": pb.Frame(hello=pb.Hello(node_id=ID, model_name="\x1b[31m")),
    "hello.url": pb.Frame(hello=pb.Hello(node_id=ID, http_url="x" * 513)),
    "hello.key": pb.Frame(hello=pb.Hello(node_id=ID, gossip_key=bytes(33))),
    "hello.certificate": pb.Frame(hello=pb.Hello(node_id=ID, gossip_key_certificate=bytes(8193))),
    "hello.id": pb.Frame(hello=pb.Hello(node_id=bytes(31))),
    "hello.epoch": pb.Frame(hello=pb.Hello(node_id=ID, epoch=1 << 63)),
    "members.count": pb.Frame(members=pb.Members(members=[ALIVE] * 129)),
    "members.state": pb.Frame(members=pb.Members(members=[pb.Member(node_id=ID)])),
    "members.reporter": pb.Frame(members=pb.Members(members=[HALF_ALIVE])),
    "heads.count": pb.Frame(heads=pb.Heads(heads=[pb.Head()] * 65)),
    "heads.blocks": pb.Frame(heads=pb.Heads(heads=[pb.Head(count=1 << 40)])),
    "heads.signature": pb.Frame(heads=pb.Heads(heads=[pb.Head(signature=bytes(65))])),
    "want.origin": pb.Frame(want=pb.Want(origin=b"x")),
    "delta.odd": pb.Frame(delta=pb.Delta(version_to=1, added=b"x" * 9)),
    "delta.backwards": pb.Frame(delta=pb.Delta(version_from=2, version_to=1)),
    "delta.still": pb.Frame(delta=pb.Delta(version_from=1, version_to=1)),
    "delta.size": pb.Frame(delta=pb.Delta(version_to=1, added=WORD * 32768, removed=WORD)),
    "snapshot.size": pb.Frame(snapshot=pb.Snapshot(chunks=1, hashes=WORD * 32769)),
    "snapshot.chunks": pb.Frame(snapshot=pb.Snapshot(chunks=65)),
    "snapshot.chunk": pb.Frame(snapshot=pb.Snapshot(chunk=1, chunks=1)),
    "digests.size": pb.Frame(range_digests=pb.RangeDigests(digests=WORD * 511)),
    "ranges.twice": pb.Frame(range_want=pb.RangeWant(ranges=b"aa")),
    "ranges.hashes": pb.Frame(range_hashes=pb.RangeHashes(hashes=WORD * 32769)),
    "filter.size": pb.Frame(filter=pb.Filter(probes=1, bits=bytes((256 << 10) + 1))),
    "filter.probes": pb.Frame(filter=pb.Filter(probes=33, bits=WORD)),
    "filter.no-probes": pb.Frame(filter=pb.Filter(bits=WORD)),
    "filter.empty": pb.Frame(filter=pb.Filter(probes=1)),
    "load.nan": pb.Frame(load=pb.Load(seconds_per_prefill_token=float("nan"))),
    "load.infinite": pb.Frame(load=pb.Load(seconds_per_decode_step=float("inf"))),
    "load.negative": pb.Frame(load=pb.Load(seconds_per_decode_step=-1.0)),
    "probe.target": pb.Frame(probe_request=pb.ProbeRequest(target=b"")),
    "bye.detail": pb.Frame(bye=pb.Bye(detail="x" * 513)),
    "frame": pb.Frame(filter=pb.Filter(bits=bytes(1 << 20))),
}


@pytest.mark.parametrize("name", TOO_BIG)
def test_what_breaks_a_limit_is_refused(name: str) -> None:
    with pytest.raises(MalformedFrameError):
        decode(TOO_BIG[name])


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(list(MESSAGES)), data=st.data())
def test_mutated_frames_decode_or_are_refused(kind: type, data: st.DataObject) -> None:
    """Nothing but MalformedFrameError comes out of whatever bytes a peer sends."""
    raw = bytearray(encode(data.draw(MESSAGES[kind])).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if raw:
            place = data.draw(st.integers(0, len(raw) - 1))
            raw[place] = data.draw(st.integers(0, 255))
    try:
        frame = pb.Frame.FromString(bytes(raw))
    except DecodeError:
        return  # gRPC turns protobuf's own refusal into a status
    with suppress(MalformedFrameError):
        decode(frame)
