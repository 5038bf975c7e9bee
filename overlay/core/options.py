"""What a core is told when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from overlay.core.timing import Timing
from overlay.core.types import Address, NodeId

DEFAULT_INDEX_BYTES = 256 << 20


class Signer(Protocol):
    """The signatures of heads, kept out of the core so that it needs no cryptography.

    The gossip key is a signing key of its own (Ed25519), made at every start; its certificate binds
    it to the node id by the key of the node's leaf.
    """

    @property
    def gossip_key(self) -> bytes: ...

    @property
    def certificate(self) -> bytes:
        """A serialized GossipKeyCertificate for `gossip_key`."""

    def sign(self, message: bytes) -> bytes:
        """A signature of `message` by the gossip key."""

    def verify(self, gossip_key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether `gossip_key` made `signature`; False for anything malformed."""

    def verify_certificate(self, node_id: NodeId, gossip_key: bytes, certificate: bytes) -> bool:
        """Whether `certificate` binds `gossip_key` to `node_id` under the mesh's trust root."""


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """A node as its peers will know it, and how it is to behave.

    `digest_key` (16 to 64 bytes) is shared by the mesh. `seeds` are redialled for ever.
    `full_mesh` is the largest mesh in which every node keeps a link to every other; larger ones
    keep `degree` links each. `index_bytes` bounds the prefix index over all peers.
    """

    node_id: NodeId
    addresses: tuple[Address, ...]
    model: bytes
    model_name: str
    digest_key: bytes
    signer: Signer
    http_url: str = ""
    seeds: Sequence[Address] = ()
    timing: Timing = field(default_factory=Timing.lan)
    full_mesh: int = 256
    degree: int = 16
    index_bytes: int = DEFAULT_INDEX_BYTES
