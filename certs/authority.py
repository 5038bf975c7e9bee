"""The three authorities of a mesh, derived from its token: the same keys and names on every node.

No authority is online: whoever holds the token issues its own leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.errors import InsufficientTokenError
from certs.identity import spiffe_uri
from certs.roles import Role
from certs.token import MeshToken

BACKDATE = timedelta(hours=1)
"""Leaves start in the past, for the sake of hosts whose clock is behind."""

# Fixed, so that every node derives the same certificate but for its signature, which nobody checks:
# a trust anchor is a name and a key (RFC 5280, 6.1.1).
AUTHORITY_NOT_BEFORE = datetime(2024, 1, 1, tzinfo=UTC)
AUTHORITY_NOT_AFTER = datetime(2124, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Authority:
    """One role's authority in one mesh; without `private_key` it can only be recognised."""

    mesh_id: str
    role: Role
    public_key: ec.EllipticCurvePublicKey
    private_key: ec.EllipticCurvePrivateKey | None

    @classmethod
    def from_token(cls, token: MeshToken, role: Role) -> Authority:
        """Raises InsufficientTokenError where the token's holder can't even recognise the authority."""
        try:
            private_key = token.authority_key(role)
        except InsufficientTokenError:
            return cls(token.mesh_id, role, token.authority_public_key(role), None)
        return cls(token.mesh_id, role, private_key.public_key(), private_key)

    def certificate(self) -> x509.Certificate:
        """The authority as a trust anchor."""
        return build_authority(
            self.mesh_id,
            self.role.value,
            self.public_key,
            self.private_key or ec.generate_private_key(ec.SECP256R1()),
            AUTHORITY_NOT_BEFORE,
            AUTHORITY_NOT_AFTER,
            serial_number=1,
        )

    def issue(
        self, public_key: ec.EllipticCurvePublicKey, name: str, lifetime: timedelta, now: datetime
    ) -> x509.Certificate:
        """A leaf for `name`; raises InsufficientTokenError where this authority can only be recognised."""
        if self.private_key is None:
            raise InsufficientTokenError(
                f"this token can't issue {self.role.value} certificates; "
                f"ask for the mesh's {self.role.value} token (see `rumormill token --help`)"
            )
        return issue_leaf(
            self.certificate(), self.private_key, public_key, self.mesh_id, self.role, name, lifetime, now
        )


def build_authority(
    mesh_id: str,
    name: str,
    public_key: ec.EllipticCurvePublicKey,
    signing_key: ec.EllipticCurvePrivateKey,
    not_before: datetime,
    not_after: datetime,
    serial_number: int,
) -> x509.Certificate:
    """A self-issued authority that can issue leaves only, never other authorities."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"rumormill {mesh_id}"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority"),
        ]
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public_key)
        .serial_number(serial_number)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key), critical=False)
        .sign(signing_key, SHA256())
    )


def issue_leaf(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    public_key: ec.EllipticCurvePublicKey,
    mesh_id: str,
    role: Role,
    name: str,
    lifetime: timedelta,
    now: datetime,
) -> x509.Certificate:
    """A leaf that says who its holder is; only a node's may serve."""
    alternative_names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(spiffe_uri(mesh_id, role, name))
    ]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role is Role.NODE:
        alternative_names += [x509.DNSName(f"{name}.{mesh_id}"), x509.DNSName(f"node.{mesh_id}")]
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, SHA256())
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
