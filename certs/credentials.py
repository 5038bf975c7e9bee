"""What one process proves about itself and whom it believes, in the forms that TLS takes.

A `CredentialSource` says what the credentials are at this moment (a mesh token, or a folder of
certificates); `Credentials` turns them into gRPC and `ssl` objects and follows their renewal.
"""

from __future__ import annotations

import ssl
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from certs.errors import CertificateRefusedError
from certs.identity import Identity, key_id
from certs.node_key import private_pem
from certs.roles import Role
from certs.trust import Denylist, Trust, load_certificate, utc_now


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """One moment's credentials. `chains` are PEM, leaf first; the first is used when calling others.

    The others are served to callers who ask for their mesh (TLS SNI), while two tokens are accepted.
    """

    identity: Identity
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    chains: tuple[bytes, ...]
    trust: Trust
    discovery_tags: tuple[str, ...]
    block_hash_key: bytes | None = field(repr=False)


class CredentialSource(Protocol):
    """Where credentials come from."""

    @property
    def denylist(self) -> Denylist: ...

    def current(self) -> Material:
        """The credentials to use now: the same object until they change. Called from any thread."""


class Credentials:
    """A process's credentials in the forms that TLS takes; safe to use from any thread."""

    def __init__(self, source: CredentialSource, clock: Callable[[], datetime] = utc_now) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._ssl_context: tuple[Material, ssl.SSLContext] | None = None
        material = source.current()
        self.node_id = key_id(material.key.public_key())
        self._block_hash_key = material.block_hash_key

    @property
    def identity(self) -> Identity:
        return self._source.current().identity

    @property
    def mesh_id(self) -> str:
        return self.identity.mesh_id

    @property
    def block_hash_key(self) -> bytes:
        """The key of the mesh's block hashes, from the start: what is cached was hashed with it.

        Raises CertificateRefusedError for a client.
        """
        if self._block_hash_key is None:
            raise CertificateRefusedError(f"{self.identity} has no block hash key: only nodes hash blocks")
        return self._block_hash_key

    @property
    def discovery_tags(self) -> tuple[str, ...]:
        """Public tags of the meshes that this process belongs to, its own first."""
        return self._source.current().discovery_tags

    @property
    def leaf_expiry(self) -> datetime:
        return self._source.current().identity.not_after

    @property
    def revision(self) -> object:
        """Another object whenever the credentials have changed: channels opened before are outdated."""
        return self._source.current()

    def server_credentials(self) -> grpc.ServerCredentials:
        """Asks every caller for a certificate; follows renewal at each handshake."""
        served = self._source.current()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            latest = self._source.current()
            if latest is served:
                return None
            served = latest
            return _server_configuration(latest)

        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(served),
            fetch,  # type: ignore[arg-type]  # the stub leaves out that None means no change
            require_client_authentication=True,
        )

    def channel_credentials(self, pinned_leaf: bytes | None = None) -> grpc.ChannelCredentials:
        """For calling any node of the mesh, or only the holder of `pinned_leaf` (PEM)."""
        material = self._source.current()
        return grpc.ssl_channel_credentials(
            root_certificates=pinned_leaf or material.trust.pem(Role.NODE),
            private_key=private_pem(material.key),
            certificate_chain=material.chains[0],
        )

    def ssl_context(self) -> ssl.SSLContext:
        """For a plain TLS handshake with a node of the mesh; the caller then identifies its leaf."""
        material = self._source.current()
        with self._lock:
            if self._ssl_context is None or self._ssl_context[0] is not material:
                self._ssl_context = (material, _client_context(material))
            return self._ssl_context[1]

    @property
    def any_node_name(self) -> str:
        """The DNS name that every node's certificate carries."""
        return f"node.{self.mesh_id}"

    def identify(self, certificate: bytes) -> Identity:
        """Who holds a leaf (PEM or DER), now; raises CertificateRefusedError or CertificateRevokedError."""
        identity = self._source.current().trust.identify(certificate, self._clock())
        self._source.denylist.check(identity)
        return identity

    def sign(self, message: bytes) -> bytes:
        """ECDSA P-256 over SHA-256 by this process's key, DER."""
        return self._source.current().key.sign(message, ec.ECDSA(SHA256()))

    def leaf(self) -> bytes:
        """This process's own leaf certificate, DER."""
        return _first_der(self._source.current().chains[0])

    def verify(self, certificate: bytes, signature: bytes, message: bytes) -> Identity:
        """Who signed `message` with the key of leaf `certificate`; raises CertificateRefusedError."""
        identity = self.identify(certificate)
        public_key = load_certificate(certificate).public_key()
        if not isinstance(public_key, ec.EllipticCurvePublicKey):
            raise CertificateRefusedError(f"the key of {identity} is not of type P-256")
        try:
            public_key.verify(signature, message, ec.ECDSA(SHA256()))
        except InvalidSignature as error:
            raise CertificateRefusedError(f"{identity} did not sign this") from error
        return identity


def _server_configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    key = private_pem(material.key)
    return grpc.ssl_server_certificate_configuration(
        [(key, chain) for chain in material.chains], root_certificates=material.trust.pem()
    )


def _client_context(material: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The name proves nothing that the identity in the verified certificate doesn't.
    context.check_hostname = False
    context.load_verify_locations(cadata=material.trust.pem(Role.NODE).decode("ascii"))
    context.set_alpn_protocols(["h2"])
    # ssl takes keys from files only; this one is 0600 and gone on return.
    with tempfile.NamedTemporaryFile() as file:
        file.write(private_pem(material.key) + material.chains[0])
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _first_der(chain: bytes) -> bytes:
    return x509.load_pem_x509_certificates(chain)[0].public_bytes(Encoding.DER)
