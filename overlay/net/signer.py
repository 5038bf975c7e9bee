"""Gossip signatures: an Ed25519 key made at every start, bound to the node id by the leaf's key.

Ed25519 (RFC 8032) signs and verifies faster than the leaf's P-256, and heads are signed often.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import DecodeError

from overlay.core.types import NodeId
from overlay.net.security import TransportSecurity
from rumormill.v1 import overlay_pb2 as pb

_BINDING = b"rumormill gossip key"


class GossipSigner:
    """Signs this node's heads and checks others'; overlay.core.options.Signer."""

    def __init__(self, security: TransportSecurity) -> None:
        self._security = security
        self._key = Ed25519PrivateKey.generate()
        self._certificate: tuple[object, bytes] | None = None
        self.gossip_key = self._key.public_key().public_bytes_raw()

    @property
    def certificate(self) -> bytes:
        """Made anew with every leaf, so that it doesn't expire in a peer's hands."""
        revision = self._security.revision
        if self._certificate is None or self._certificate[0] is not revision:
            message = pb.GossipKeyCertificate(
                leaf=self._security.leaf(), signature=self._security.sign(_BINDING + self.gossip_key)
            )
            self._certificate = (revision, message.SerializeToString())
        return self._certificate[1]

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def verify(self, gossip_key: bytes, message: bytes, signature: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(gossip_key).verify(signature, message)
        except (ValueError, InvalidSignature):
            return False
        return True

    def verify_certificate(self, node_id: NodeId, gossip_key: bytes, certificate: bytes) -> bool:
        try:
            binding = pb.GossipKeyCertificate.FromString(certificate)
            signer = self._security.verify(binding.leaf, binding.signature, _BINDING + gossip_key)
        except (DecodeError, ValueError):
            return False
        return signer.is_node and signer.node_id == node_id
