"""Signed heads: what a relay passes on about an origin, it can't forge."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TypeVar

from overlay.core.digest import SetDigest
from overlay.core.messages import Filter, Head
from overlay.core.options import Signer
from overlay.core.own_set import OwnSet
from overlay.core.types import NodeId

Signed = TypeVar("Signed", Head, Filter)

_KEYS_PER_ORIGIN = 2
"""The present gossip key, and the one before a restart."""


def head_payload(origin: NodeId, head: Head) -> bytes:
    """What the signature of a head covers."""
    fields = (head.epoch, head.version, head.floor, head.count, head.digest_low, head.digest_high)
    return b"rumormill head 1\0" + origin.encode() + struct.pack("<6Q", *fields)


def filter_payload(origin: NodeId, summary: Filter) -> bytes:
    """What the signature of a filter covers."""
    fields = (summary.epoch, summary.version, summary.count, summary.probes)
    sizes = (len(summary.model), len(summary.bits))
    header = b"rumormill filter 1\0" + origin.encode() + struct.pack("<6Q", *fields, *sizes)
    return header + summary.model + summary.bits


def sign_head(own_id: NodeId, own: OwnSet, signer: Signer) -> Head:
    """The head of this node's own set."""
    digest = own.digest
    head = Head(None, own.epoch, own.version, own.floor, digest.count, digest.low, digest.high)
    signature = signer.sign(head_payload(own_id, head))
    return Head(
        None, own.epoch, own.version, own.floor, digest.count, digest.low, digest.high, signature=signature
    )


def digest_of(head: Head) -> SetDigest:
    return SetDigest(head.count, head.digest_low, head.digest_high)


@dataclass(slots=True, eq=False)
class KeyRing:
    """Gossip keys that are known to belong to their origins."""

    signer: Signer
    _keys: dict[NodeId, dict[bytes, bytes]] = field(default_factory=dict)

    def trust(self, origin: NodeId, gossip_key: bytes, certificate: bytes) -> bool:
        """Learns a key if its certificate holds; the newest ones are kept."""
        known = self._keys.get(origin, {})
        if gossip_key not in known:
            if not self.signer.verify_certificate(origin, gossip_key, certificate):
                return False
            kept = list(known.items())[-_KEYS_PER_ORIGIN + 1 :]
            self._keys[origin] = {**dict(kept), gossip_key: certificate}
        return True

    def verified(self, origin: NodeId, signed: Signed) -> Signed | None:
        """`signed` with its key and certificate, if `origin` signed it; learns a key that came along."""
        if signed.gossip_key and not self.trust(origin, signed.gossip_key, signed.gossip_key_certificate):
            return None
        payload = head_payload(origin, signed) if isinstance(signed, Head) else filter_payload(origin, signed)
        known = self._keys.get(origin, {})
        for key in (signed.gossip_key,) if signed.gossip_key else tuple(known)[::-1]:
            if self.signer.verify(key, payload, signed.signature):
                return replace(signed, gossip_key=key, gossip_key_certificate=known[key])
        return None

    def forget(self, origin: NodeId) -> None:
        self._keys.pop(origin, None)
