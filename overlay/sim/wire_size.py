"""How long each message is on the wire, without encoding it: the protobuf sizes of `overlay.proto`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from overlay.core.messages import (
    Ack,
    Bye,
    Delta,
    Filter,
    Head,
    Heads,
    Hello,
    LoadReport,
    Member,
    Members,
    Message,
    Nack,
    Probe,
    ProbeRequest,
    RangeDigests,
    RangeHashes,
    RangeWant,
    Snapshot,
    Want,
)
from overlay.core.types import Address, Load, NodeId

FRAMING_BYTES = 36
"""gRPC's message header (5), HTTP/2's frame header (9) and TLS 1.3's record (22)."""

_ID_FIELD = 34


def wire_size(message: Message) -> int:
    """Bytes of a frame on the wire, framing included."""
    body: int = _SIZES[type(message)](message)
    return FRAMING_BYTES + _tag(_FIELD_NUMBERS.get(type(message), 1)) + _varint(body) + body


def _varint(value: int) -> int:
    return 1 if value < 128 else (value.bit_length() + 6) // 7


def _tag(field: int) -> int:
    return 1 if field < 16 else 2


def _int(value: int) -> int:
    """An integer field; zero isn't written."""
    return 1 + _varint(value) if value else 0


def _bytes(value: bytes | str, field: int = 1) -> int:
    length = len(value.encode()) if isinstance(value, str) else len(value)
    return _tag(field) + _varint(length) + length if length else 0


def _hashes(count: int) -> int:
    return 1 + _varint(8 * count) + 8 * count if count else 0


def _origin(origin: NodeId | None) -> int:
    return _ID_FIELD if origin is not None else 0


def _address(address: Address) -> int:
    body = _bytes(address.host) + _int(address.port)
    return 1 + _varint(body) + body


def _hello(message: Hello) -> int:
    ints = (message.major, message.minor, message.epoch, message.incarnation)
    texts = (message.model, message.model_name, message.http_url, message.gossip_key)
    body = sum(map(_int, ints)) + _addresses(message.addresses)
    body += sum(_bytes(text) for text in texts)
    return _ID_FIELD + body + _bytes(message.gossip_key_certificate)


def _member(member: Member) -> int:
    body = _ID_FIELD + 2 + _int(member.incarnation) + _origin(member.reporter) + _addresses(member.addresses)
    return 1 + _varint(body) + body


@lru_cache(4096)
def _addresses(addresses: tuple[Address, ...]) -> int:
    return sum(map(_address, addresses))


def _head(head: Head) -> int:
    ints = (head.epoch, head.version, head.floor, head.count)
    body = (
        _origin(head.origin) + sum(map(_int, ints)) + 9 * bool(head.digest_low) + 9 * bool(head.digest_high)
    )
    body += _bytes(head.gossip_key) + _bytes(head.gossip_key_certificate) + _bytes(head.signature)
    return 1 + _varint(body) + body


def _load(origin: NodeId | None, load: Load) -> int:
    ints = (
        load.epoch,
        load.sequence,
        load.running,
        load.waiting,
        load.queued_prefill_tokens,
        load.prefill_tokens_per_step,
        load.kv_blocks_total,
        load.kv_blocks_used,
        load.draining,
        load.accepting,
    )
    doubles = 9 * bool(load.seconds_per_prefill_token) + 9 * bool(load.seconds_per_decode_step)
    return _origin(origin) + sum(map(_int, ints)) + doubles


def _replica(message: Want | Delta | Snapshot | RangeDigests | RangeWant | RangeHashes | Filter) -> int:
    version = message.version_from if isinstance(message, Delta) else message.version
    return _origin(message.origin) + _int(message.epoch) + _int(version)


def _delta(message: Delta) -> int:
    body = _replica(message) + _int(message.version_to)
    return body + _hashes(len(message.added)) + _hashes(len(message.removed))


def _snapshot(message: Snapshot) -> int:
    return _replica(message) + _int(message.chunk) + _int(message.chunks) + _hashes(len(message.hashes))


def _filter(message: Filter) -> int:
    body = _replica(message) + _int(message.count) + _int(message.probes) + _bytes(message.bits)
    body += _bytes(message.model) + _bytes(message.gossip_key) + _bytes(message.gossip_key_certificate)
    return body + _bytes(message.signature)


_SIZES: dict[type, Callable[[Any], int]] = {
    Hello: _hello,
    Members: lambda message: sum(map(_member, message.members)),
    Heads: lambda message: sum(map(_head, message.heads)),
    Want: _replica,
    Delta: _delta,
    Snapshot: _snapshot,
    RangeDigests: lambda message: _replica(message) + _hashes(message.digests.size),
    RangeWant: lambda message: _replica(message) + _bytes(message.ranges),
    RangeHashes: lambda message: _replica(message) + _bytes(message.ranges) + _hashes(len(message.hashes)),
    Filter: _filter,
    LoadReport: lambda message: _load(message.origin, message.load),
    Probe: lambda message: _int(message.sequence),
    ProbeRequest: lambda message: _int(message.sequence) + _ID_FIELD,
    Ack: lambda message: _int(message.sequence) + _int(message.incarnation),
    Nack: lambda message: _int(message.sequence),
    Bye: lambda message: _int(message.reason) + _bytes(message.detail),
}
_FIELD_NUMBERS: dict[type, int] = {Filter: 16}
