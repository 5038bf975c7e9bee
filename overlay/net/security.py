"""What the overlay needs of whatever holds the node's certificates; `certs` provides it."""

from __future__ import annotations

import ssl
from typing import Protocol

import grpc


class PeerIdentity(Protocol):
    """Whom a verified certificate names; `node_id` is that of its key."""

    @property
    def is_node(self) -> bool: ...

    @property
    def node_id(self) -> str: ...

    @property
    def server_name(self) -> str:
        """The DNS name that this node's certificate carries and no other's."""


class TransportSecurity(Protocol):
    """This node's credentials and whom it trusts, as they are at this moment.

    `identify` and `verify` raise a ValueError whose text says why a certificate is refused.
    """

    @property
    def mesh_id(self) -> str: ...

    @property
    def node_id(self) -> str: ...

    @property
    def block_hash_key(self) -> bytes:
        """The mesh's shared secret for keyed hashes, 16 to 64 bytes."""

    @property
    def discovery_tags(self) -> tuple[str, ...]:
        """Public tags of the meshes whose nodes are wanted in mDNS; the first is announced."""

    @property
    def revision(self) -> object:
        """Another object whenever the credentials have changed."""

    @property
    def any_node_name(self) -> str:
        """The DNS name to ask for while the peer's id isn't known."""

    def channel_credentials(self, pinned_leaf: bytes | None = None) -> grpc.ChannelCredentials:
        """For calling the holder of `pinned_leaf` (PEM) alone."""

    def ssl_context(self) -> ssl.SSLContext:
        """For a TLS handshake with any node; verifies the chain, not the name."""

    def identify(self, certificate: bytes) -> PeerIdentity:
        """Who holds a leaf certificate, PEM or DER."""

    def leaf(self) -> bytes:
        """This node's own leaf certificate, DER."""

    def sign(self, message: bytes) -> bytes:
        """A signature by the key of `leaf()`."""

    def verify(self, certificate: bytes, signature: bytes, message: bytes) -> PeerIdentity:
        """Who signed `message` with the key of leaf `certificate`, DER."""
