"""Signatures for simulated nodes: real enough that a forgery fails, and a hundred times cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from overlay.core.types import NodeId

_SECRET = b"known to the simulator alone"


def _tag(purpose: bytes, *parts: bytes) -> bytes:
    digest = blake2b(digest_size=16, key=_SECRET, person=purpose)
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class SimSigner:
    """The signer of one run of one simulated node; `run` makes its gossip key new at each start."""

    node_id: NodeId
    run: int = 0

    @property
    def gossip_key(self) -> bytes:
        return _tag(b"key", self.node_id.encode(), self.run.to_bytes(8, "little"))

    @property
    def certificate(self) -> bytes:
        return _tag(b"certificate", self.node_id.encode(), self.gossip_key)

    def sign(self, message: bytes) -> bytes:
        return _tag(b"signature", self.gossip_key, message)

    def verify(self, gossip_key: bytes, message: bytes, signature: bytes) -> bool:
        return signature == _tag(b"signature", gossip_key, message)

    def verify_certificate(self, node_id: NodeId, gossip_key: bytes, certificate: bytes) -> bool:
        return certificate == _tag(b"certificate", node_id.encode(), gossip_key)
