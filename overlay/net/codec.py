"""Messages of the core to protobuf frames and back; the one place where a frame's shape is checked.

Hash lists travel as packed little-endian u64.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from overlay.core import limits
from overlay.core import messages as msg
from overlay.core.types import Address, Epoch, Load, NodeId, Version
from overlay.net.errors import MalformedFrameError
from rumormill.v1 import overlay_pb2 as pb

NODE_ID_BYTES = 32
RANGES = 256
MAX_SIGNATURE_BYTES = 64
MAX_GOSSIP_KEY_BYTES = 32
MAX_FILTER_PROBES = 32

_U64 = np.dtype("<u8")


@lru_cache(8192)
def node_id_bytes(node_id: NodeId) -> bytes:
    """A node id as the 32 bytes that travel."""
    return base64.b32decode(node_id.upper() + "=" * (-len(node_id) % 8))


@lru_cache(8192)
def node_id_from_bytes(data: bytes) -> NodeId:
    """Raises MalformedFrameError."""
    if len(data) != NODE_ID_BYTES:
        raise MalformedFrameError(f"a node id has {NODE_ID_BYTES} bytes, not {len(data)}")
    return NodeId(base64.b32encode(data).decode("ascii").rstrip("=").lower())


def encode_load(load: Load, origin: NodeId | None = None) -> pb.Load:
    """A load report; without `origin` it is the sender's own."""
    return pb.Load(
        origin=_origin_bytes(origin),
        epoch=load.epoch,
        sequence=load.sequence,
        running=load.running,
        waiting=load.waiting,
        queued_prefill_tokens=load.queued_prefill_tokens,
        seconds_per_prefill_token=load.seconds_per_prefill_token,
        seconds_per_decode_step=load.seconds_per_decode_step,
        prefill_tokens_per_step=load.prefill_tokens_per_step,
        kv_blocks_total=load.kv_blocks_total,
        kv_blocks_used=load.kv_blocks_used,
        draining=load.draining,
        accepting=load.accepting,
    )


def decode_load(message: pb.Load) -> Load:
    """Raises MalformedFrameError for times that are not finite and positive."""
    for seconds in (message.seconds_per_prefill_token, message.seconds_per_decode_step):
        if not (math.isfinite(seconds) and seconds >= 0):
            raise MalformedFrameError(f"a load has a time of {seconds} s")
    return Load(
        epoch=_epoch(message.epoch),
        sequence=message.sequence,
        running=message.running,
        waiting=message.waiting,
        queued_prefill_tokens=message.queued_prefill_tokens,
        seconds_per_prefill_token=message.seconds_per_prefill_token,
        seconds_per_decode_step=message.seconds_per_decode_step,
        prefill_tokens_per_step=message.prefill_tokens_per_step,
        kv_blocks_total=message.kv_blocks_total,
        kv_blocks_used=message.kv_blocks_used,
        draining=message.draining,
        accepting=message.accepting,
    )


def frame_kind(frame: pb.Frame) -> str:
    """The name of a frame's body, for metrics; "unknown" for one of a later protocol minor."""
    return frame.WhichOneof("body") or "unknown"


def encode(message: msg.Message) -> pb.Frame:
    """The frame of a message."""
    return _ENCODERS[type(message)](message)


def decode(frame: pb.Frame) -> msg.Message | None:
    """The message of a frame, None for a kind that this version doesn't know.

    Raises MalformedFrameError for whatever breaks a limit.
    """
    size = frame.ByteSize()
    if size > limits.MAX_FRAME_BYTES:
        raise MalformedFrameError(f"a frame of {size} bytes, over {limits.MAX_FRAME_BYTES}")
    kind = frame.WhichOneof("body")
    decoder = _DECODERS.get(kind) if kind is not None else None
    return decoder(getattr(frame, str(kind))) if decoder is not None else None


# -- encoding -----------------------------------------------------------------------------------


def _pack(hashes: msg.Hashes) -> bytes:
    return np.ascontiguousarray(hashes, dtype=_U64).tobytes()


def _origin_bytes(origin: NodeId | None) -> bytes:
    return node_id_bytes(origin) if origin is not None else b""


def _address_messages(addresses: Iterable[Address]) -> list[pb.Address]:
    return [pb.Address(host=address.host, port=address.port) for address in addresses]


def _encode_hello(m: msg.Hello) -> pb.Frame:
    return pb.Frame(
        hello=pb.Hello(
            major=m.major,
            minor=m.minor,
            node_id=node_id_bytes(m.node_id),
            epoch=m.epoch,
            incarnation=m.incarnation,
            addresses=_address_messages(m.addresses),
            model=m.model,
            model_name=m.model_name,
            gossip_key=m.gossip_key,
            gossip_key_certificate=m.gossip_key_certificate,
            http_url=m.http_url,
        )
    )


def _encode_members(m: msg.Members) -> pb.Frame:
    return pb.Frame(
        members=pb.Members(
            members=[
                pb.Member(
                    node_id=node_id_bytes(member.node_id),
                    state=int(member.state),  # type: ignore[arg-type]  # the numbers are the wire's
                    incarnation=member.incarnation,
                    addresses=_address_messages(member.addresses),
                    reporter=_origin_bytes(member.reporter),
                )
                for member in m.members
            ]
        )
    )


def _encode_heads(m: msg.Heads) -> pb.Frame:
    return pb.Frame(
        heads=pb.Heads(
            heads=[
                pb.Head(
                    origin=_origin_bytes(head.origin),
                    epoch=head.epoch,
                    version=head.version,
                    floor=head.floor,
                    count=head.count,
                    digest_low=head.digest_low,
                    digest_high=head.digest_high,
                    gossip_key=head.gossip_key,
                    gossip_key_certificate=head.gossip_key_certificate,
                    signature=head.signature,
                )
                for head in m.heads
            ]
        )
    )


def _encode_want(m: msg.Want) -> pb.Frame:
    return pb.Frame(want=pb.Want(origin=_origin_bytes(m.origin), epoch=m.epoch, version=m.version))


def _encode_delta(m: msg.Delta) -> pb.Frame:
    return pb.Frame(
        delta=pb.Delta(
            origin=_origin_bytes(m.origin),
            epoch=m.epoch,
            version_from=m.version_from,
            version_to=m.version_to,
            added=_pack(m.added),
            removed=_pack(m.removed),
        )
    )


def _encode_snapshot(m: msg.Snapshot) -> pb.Frame:
    return pb.Frame(
        snapshot=pb.Snapshot(
            origin=_origin_bytes(m.origin),
            epoch=m.epoch,
            version=m.version,
            chunk=m.chunk,
            chunks=m.chunks,
            hashes=_pack(m.hashes),
        )
    )


def _encode_range_digests(m: msg.RangeDigests) -> pb.Frame:
    origin = _origin_bytes(m.origin)
    digests = _pack(m.digests)
    return pb.Frame(
        range_digests=pb.RangeDigests(origin=origin, epoch=m.epoch, version=m.version, digests=digests)
    )


def _encode_range_want(m: msg.RangeWant) -> pb.Frame:
    origin = _origin_bytes(m.origin)
    return pb.Frame(range_want=pb.RangeWant(origin=origin, epoch=m.epoch, version=m.version, ranges=m.ranges))


def _encode_range_hashes(m: msg.RangeHashes) -> pb.Frame:
    return pb.Frame(
        range_hashes=pb.RangeHashes(
            origin=_origin_bytes(m.origin),
            epoch=m.epoch,
            version=m.version,
            ranges=m.ranges,
            hashes=_pack(m.hashes),
        )
    )


def _encode_filter(m: msg.Filter) -> pb.Frame:
    return pb.Frame(
        filter=pb.Filter(
            origin=_origin_bytes(m.origin),
            epoch=m.epoch,
            version=m.version,
            count=m.count,
            probes=m.probes,
            bits=m.bits,
            model=m.model,
            gossip_key=m.gossip_key,
            gossip_key_certificate=m.gossip_key_certificate,
            signature=m.signature,
        )
    )


def _encode_probe_request(m: msg.ProbeRequest) -> pb.Frame:
    return pb.Frame(probe_request=pb.ProbeRequest(sequence=m.sequence, target=node_id_bytes(m.target)))


def _encode_bye(m: msg.Bye) -> pb.Frame:
    detail = m.detail[: limits.MAX_DETAIL_CHARACTERS]
    return pb.Frame(bye=pb.Bye(reason=int(m.reason), detail=detail))  # type: ignore[arg-type]  # as above


_ENCODERS: dict[type, Callable[[Any], pb.Frame]] = {
    msg.Hello: _encode_hello,
    msg.Members: _encode_members,
    msg.Heads: _encode_heads,
    msg.Want: _encode_want,
    msg.Delta: _encode_delta,
    msg.Snapshot: _encode_snapshot,
    msg.RangeDigests: _encode_range_digests,
    msg.RangeWant: _encode_range_want,
    msg.RangeHashes: _encode_range_hashes,
    msg.Filter: _encode_filter,
    msg.LoadReport: lambda m: pb.Frame(load=encode_load(m.load, m.origin)),
    msg.Probe: lambda m: pb.Frame(probe=pb.Probe(sequence=m.sequence)),
    msg.ProbeRequest: _encode_probe_request,
    msg.Ack: lambda m: pb.Frame(ack=pb.Ack(sequence=m.sequence, incarnation=m.incarnation)),
    msg.Nack: lambda m: pb.Frame(nack=pb.Nack(sequence=m.sequence)),
    msg.Bye: _encode_bye,
}


# -- decoding -----------------------------------------------------------------------------------


def _at_most(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise MalformedFrameError(f"{what} of {size}, over {limit}")


def _epoch(value: int) -> Epoch:
    _at_most("an epoch", value, limits.MAX_EPOCH)
    return Epoch(value)


def _unpack(data: bytes) -> msg.Hashes:
    if len(data) % _U64.itemsize:
        raise MalformedFrameError(f"{len(data)} bytes of hashes are no whole number of them")
    _at_most("a hash list", len(data) // _U64.itemsize, limits.MAX_HASHES_PER_FRAME)
    return np.frombuffer(data, dtype=_U64).astype(np.uint64, copy=False)


def _origin(data: bytes) -> NodeId | None:
    return node_id_from_bytes(data) if data else None


def _addresses(messages: Iterable[pb.Address]) -> tuple[Address, ...]:
    addresses = tuple(Address(address.host, address.port) for address in messages)
    _at_most("an address list", len(addresses), limits.MAX_ADDRESSES_PER_NODE)
    for address in addresses:
        _at_most("a host name", len(address.host), limits.MAX_HOST_CHARACTERS)
        if not 0 < address.port < 65536 or not _is_host(address.host):
            raise MalformedFrameError(f"{str(address)[:64]!r} is no address")
    return addresses


def _is_host(host: str) -> bool:
    """Letters that host names and IP literals are made of; what reaches logs and resolvers is clean."""
    return bool(host) and host.isascii() and all(c.isalnum() or c in ".-_:%" for c in host)


def _text(what: str, text: str, limit: int) -> str:
    _at_most(what, len(text), limit)
    if not text.isprintable():
        raise MalformedFrameError(f"{what} with control characters")
    return text


def _decode_hello(m: pb.Hello) -> msg.Hello:
    _at_most("a model digest", len(m.model), limits.MAX_MODEL_DIGEST_BYTES)
    _check_gossip_key(m)
    return msg.Hello(
        major=m.major,
        minor=m.minor,
        node_id=node_id_from_bytes(m.node_id),
        epoch=_epoch(m.epoch),
        incarnation=m.incarnation,
        addresses=_addresses(m.addresses),
        model=m.model,
        model_name=_text("a model name", m.model_name, limits.MAX_NAME_CHARACTERS),
        http_url=_text("a URL", m.http_url, limits.MAX_URL_CHARACTERS),
        gossip_key=m.gossip_key,
        gossip_key_certificate=m.gossip_key_certificate,
    )


def _check_gossip_key(m: pb.Hello | pb.Head | pb.Filter) -> None:
    _at_most("a gossip key", len(m.gossip_key), MAX_GOSSIP_KEY_BYTES)
    _at_most("a key certificate", len(m.gossip_key_certificate), limits.MAX_KEY_CERTIFICATE_BYTES)


def _decode_members(m: pb.Members) -> msg.Members:
    _at_most("a member list", len(m.members), limits.MAX_MEMBERS_PER_FRAME)
    return msg.Members(tuple(_decode_member(member) for member in m.members))


def _decode_member(m: pb.Member) -> msg.Member:
    try:
        state = msg.MemberState(m.state)
    except ValueError:
        raise MalformedFrameError(f"{m.state} is no member state") from None
    _at_most("an incarnation", m.incarnation, limits.MAX_EPOCH)
    addresses = _addresses(m.addresses)
    return msg.Member(node_id_from_bytes(m.node_id), state, m.incarnation, addresses, _origin(m.reporter))


def _decode_heads(m: pb.Heads) -> msg.Heads:
    _at_most("a head list", len(m.heads), limits.MAX_HEADS_PER_FRAME)
    return msg.Heads(tuple(_decode_head(head) for head in m.heads))


def _decode_head(m: pb.Head) -> msg.Head:
    _check_gossip_key(m)
    _at_most("a signature", len(m.signature), MAX_SIGNATURE_BYTES)
    _at_most("a block count", m.count, limits.MAX_HASHES_PER_ORIGIN)
    return msg.Head(
        origin=_origin(m.origin),
        epoch=_epoch(m.epoch),
        version=Version(m.version),
        floor=Version(m.floor),
        count=m.count,
        digest_low=m.digest_low,
        digest_high=m.digest_high,
        signature=m.signature,
        gossip_key=m.gossip_key,
        gossip_key_certificate=m.gossip_key_certificate,
    )


def _decode_want(m: pb.Want) -> msg.Want:
    return msg.Want(_origin(m.origin), _epoch(m.epoch), Version(m.version))


def _decode_delta(m: pb.Delta) -> msg.Delta:
    if m.version_from >= m.version_to:
        raise MalformedFrameError(f"a delta from version {m.version_from} to {m.version_to}")
    added, removed = _unpack(m.added), _unpack(m.removed)
    _at_most("a delta", len(added) + len(removed), limits.MAX_HASHES_PER_FRAME)
    return msg.Delta(
        _origin(m.origin), _epoch(m.epoch), Version(m.version_from), Version(m.version_to), added, removed
    )


def _decode_snapshot(m: pb.Snapshot) -> msg.Snapshot:
    _at_most("a number of snapshot chunks", m.chunks, limits.MAX_SNAPSHOT_CHUNKS)
    if m.chunk >= m.chunks:
        raise MalformedFrameError(f"snapshot chunk {m.chunk} of {m.chunks}")
    return msg.Snapshot(
        _origin(m.origin), _epoch(m.epoch), Version(m.version), m.chunk, m.chunks, _unpack(m.hashes)
    )


def _decode_range_digests(m: pb.RangeDigests) -> msg.RangeDigests:
    if len(m.digests) != RANGES * 2 * _U64.itemsize:
        raise MalformedFrameError(f"range digests of {len(m.digests)} bytes")
    digests = np.frombuffer(m.digests, dtype=_U64).astype(np.uint64, copy=False).reshape(RANGES, 2)
    return msg.RangeDigests(_origin(m.origin), _epoch(m.epoch), Version(m.version), digests)


def _ranges(data: bytes) -> bytes:
    _at_most("a range list", len(data), RANGES)
    if len(set(data)) != len(data):
        raise MalformedFrameError("a range list with duplicates")
    return data


def _decode_range_want(m: pb.RangeWant) -> msg.RangeWant:
    return msg.RangeWant(_origin(m.origin), _epoch(m.epoch), Version(m.version), _ranges(m.ranges))


def _decode_range_hashes(m: pb.RangeHashes) -> msg.RangeHashes:
    ranges, hashes = _ranges(m.ranges), _unpack(m.hashes)
    return msg.RangeHashes(_origin(m.origin), _epoch(m.epoch), Version(m.version), ranges, hashes)


def _decode_filter(m: pb.Filter) -> msg.Filter:
    _check_gossip_key(m)
    _at_most("a signature", len(m.signature), MAX_SIGNATURE_BYTES)
    _at_most("a filter", len(m.bits), limits.MAX_FILTER_BYTES)
    _at_most("a model digest", len(m.model), limits.MAX_MODEL_DIGEST_BYTES)
    _at_most("a block count", m.count, limits.MAX_HASHES_PER_ORIGIN)
    _at_most("a number of probes", m.probes, MAX_FILTER_PROBES)
    if not m.bits or not m.probes:
        raise MalformedFrameError("an empty filter")
    return msg.Filter(
        origin=_origin(m.origin),
        epoch=_epoch(m.epoch),
        version=Version(m.version),
        count=m.count,
        probes=m.probes,
        bits=m.bits,
        model=m.model,
        signature=m.signature,
        gossip_key=m.gossip_key,
        gossip_key_certificate=m.gossip_key_certificate,
    )


def _decode_bye(m: pb.Bye) -> msg.Bye:
    try:
        reason = msg.ByeReason(m.reason)
    except ValueError:
        reason = msg.ByeReason.UNSPECIFIED
    return msg.Bye(reason, _text("a detail", m.detail, limits.MAX_DETAIL_CHARACTERS))


_DECODERS: dict[str, Callable[[Any], msg.Message]] = {
    "hello": _decode_hello,
    "members": _decode_members,
    "heads": _decode_heads,
    "want": _decode_want,
    "delta": _decode_delta,
    "snapshot": _decode_snapshot,
    "range_digests": _decode_range_digests,
    "range_want": _decode_range_want,
    "range_hashes": _decode_range_hashes,
    "filter": _decode_filter,
    "load": lambda m: msg.LoadReport(_origin(m.origin), decode_load(m)),
    "probe": lambda m: msg.Probe(m.sequence),
    "probe_request": lambda m: msg.ProbeRequest(m.sequence, node_id_from_bytes(m.target)),
    "ack": lambda m: msg.Ack(m.sequence, m.incarnation),
    "nack": lambda m: msg.Nack(m.sequence),
    "bye": _decode_bye,
}
