"""Who a certificate says its holder is: a SPIFFE URI of mesh, role and name.

SPIFFE X.509-SVID: exactly one URI SAN, `spiffe://<mesh>/<role>/<name>`.
"""

from __future__ import annotations

import re
from base64 import b32encode
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from certs.errors import CertificateRefusedError
from certs.roles import Role

_KEY_ID = re.compile(r"[a-z2-7]{52}")
_SPIFFE = re.compile(r"spiffe://([a-z0-9.-]{1,63})/(client|node|operator)/([a-z0-9._-]{1,63})")


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller. `node_id` comes from its key, whatever its certificate calls it."""

    mesh_id: str
    role: Role
    name: str
    node_id: str
    serial_number: int
    not_before: datetime
    not_after: datetime

    @property
    def uri(self) -> str:
        return spiffe_uri(self.mesh_id, self.role, self.name)

    @property
    def is_node(self) -> bool:
        return self.role is Role.NODE

    @property
    def server_name(self) -> str:
        """The DNS name that a node's certificate carries for this node alone."""
        return f"{self.name}.{self.mesh_id}"

    def __str__(self) -> str:
        return f"{self.role.value}/{self.name}"


def spiffe_uri(mesh_id: str, role: Role, name: str) -> str:
    return f"spiffe://{mesh_id}/{role.value}/{name}"


def is_valid_name(name: str) -> bool:
    """Whether a mesh, client or operator may be called so."""
    return re.fullmatch(r"[a-z0-9._-]{1,63}", name) is not None


def key_id(public_key: CertificatePublicKeyTypes) -> str:
    """SHA-256 of a public key (SPKI) as 52 characters of lower-case base32: a node's id."""
    spki = public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base32(sha256(spki).digest())


def base32(data: bytes) -> str:
    """Lower-case base32 without padding (RFC 4648), fit for a DNS label."""
    return b32encode(data).decode("ascii").rstrip("=").lower()


def claimed_identity(certificate: x509.Certificate) -> Identity:
    """What a certificate claims, unverified; raises CertificateRefusedError if it claims nothing.

    A name that could be a node id must be that of the key, so that none can be taken for another.
    """
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError) as error:
        raise CertificateRefusedError(f"the certificate has no readable names: {error}") from error
    uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    match = _SPIFFE.fullmatch(uris[0]) if len(uris) == 1 else None
    if match is None:
        raise CertificateRefusedError(
            "the certificate must carry exactly one URI name, spiffe://<mesh>/<role>/<name>; it has "
            + (", ".join(repr(uri[:80]) for uri in uris[:4]) or "none")
        )
    mesh_id, role, name = match.groups()
    identity = Identity(
        mesh_id,
        Role(role),
        name,
        key_id(certificate.public_key()),
        certificate.serial_number,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
    if name != identity.node_id and _KEY_ID.fullmatch(name):
        raise CertificateRefusedError(f"the certificate is named {name}, which is not the id of its key")
    return identity
