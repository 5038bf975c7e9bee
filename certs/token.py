"""The mesh token: one secret from which a whole mesh's trust is derived, offline and one-way.

operator secret -> node secret -> client secret -> mesh id. A token of one role yields those of the
roles after it, never the ones before. HKDF: RFC 5869.
"""

from __future__ import annotations

import secrets
from base64 import b32decode
from dataclasses import dataclass, field
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from certs.errors import InsufficientTokenError, MalformedTokenError, WeakTokenError
from certs.identity import base32
from certs.roles import Role

MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 64
DERIVED_SECRET_BYTES = 32
CHECKSUM_BYTES = 3

_POINT_BYTES = 33  # a compressed P-256 point, SEC 1
_PREFIXES = {Role.OPERATOR: "rumormill_", Role.NODE: "rumormill_node_", Role.CLIENT: "rumormill_client_"}
# The authority that a token's holder must recognise but can't speak for.
_ANCHORED = {Role.NODE: Role.OPERATOR, Role.CLIENT: Role.NODE}
_SUCCESSOR = {Role.OPERATOR: Role.NODE, Role.NODE: Role.CLIENT}


@dataclass(frozen=True, slots=True)
class MeshToken:
    """A secret of one role; `str()` is what people pass around.

    `anchor` is the public key of the next higher authority that the holder must recognise:
    the operator's for a node token, the node's for a client token, none for an operator token.
    """

    secret: bytes = field(repr=False)
    role: Role = Role.OPERATOR
    anchor: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        bits = 8 * len(self.secret)
        if len(self.secret) < MIN_SECRET_BYTES:
            raise WeakTokenError(
                f"this token has {bits} bits of secret and at least {8 * MIN_SECRET_BYTES} are needed; "
                "make one with `rumormill token`"
            )
        if len(set(self.secret)) == 1:
            raise WeakTokenError("this token is one byte repeated; make one with `rumormill token`")
        if len(self.secret) > MAX_SECRET_BYTES:
            raise MalformedTokenError(
                f"this token has {bits} bits of secret; {8 * MAX_SECRET_BYTES} is the most"
            )

    @classmethod
    def make(cls, secret_bytes: int = DERIVED_SECRET_BYTES) -> MeshToken:
        """A new mesh: an operator token, from which every other token of the mesh derives."""
        return cls(secrets.token_bytes(secret_bytes))

    @classmethod
    def parse(cls, text: str) -> MeshToken:
        """Reads what `str()` wrote; raises MalformedTokenError or WeakTokenError."""
        text = text.strip().lower()
        role, body = _split_prefix(text)
        try:
            data = b32decode(body.upper() + "=" * (-len(body) % 8))
        except ValueError as error:
            raise MalformedTokenError(f"this token is mistyped or cut short: {error}") from error
        payload, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
        if checksum != _checksum(role, payload):
            raise MalformedTokenError(
                "this token is mistyped or cut short (its checksum is wrong); copy it again"
            )
        if role is Role.OPERATOR:
            return cls(payload)
        if len(payload) != DERIVED_SECRET_BYTES + _POINT_BYTES:
            raise MalformedTokenError(f"a {role.value} token can't have {len(payload)} bytes; copy it again")
        return cls(payload[:DERIVED_SECRET_BYTES], role, payload[DERIVED_SECRET_BYTES:])

    def __str__(self) -> str:
        payload = self.secret + self.anchor
        return _PREFIXES[self.role] + base32(payload + _checksum(self.role, payload))

    def for_role(self, role: Role) -> MeshToken:
        """This mesh's token for a role at or below this one's; raises InsufficientTokenError."""
        token = self
        while token.role is not role:
            successor = _SUCCESSOR.get(token.role)
            if successor is None:
                raise InsufficientTokenError(
                    f"a {self.role.value} token can't act as {role.value}; "
                    f"ask for the mesh's {role.value} token (see `rumormill token --help`)"
                )
            token = token._derive_successor(successor)
        return token

    @property
    def mesh_id(self) -> str:
        """Names the mesh; public. 16 characters of base32, the same for all its tokens."""
        return base32(self._public("mesh id", 10))

    @property
    def discovery_tag(self) -> str:
        """Tells this mesh's nodes from others in mDNS; public, and says nothing about the secret."""
        return base32(self._public("discovery tag", 10))

    @property
    def block_hash_key(self) -> bytes:
        """The 32-byte key of the mesh's block hashes; raises InsufficientTokenError for a client token."""
        return _derive(self.for_role(Role.NODE).secret, "block hashes", 32)

    def authority_key(self, role: Role) -> ec.EllipticCurvePrivateKey:
        """The private key of a role's authority; raises InsufficientTokenError.

        48 bytes of HKDF output reduced into [1, n-1]: FIPS 186-5 A.2.1, extra random bits.
        """
        candidate = _derive(self.for_role(role).secret, f"{role.value} authority", 48)
        scalar = int.from_bytes(candidate, "big") % (ec.SECP256R1().group_order - 1) + 1
        return ec.derive_private_key(scalar, ec.SECP256R1())

    def authority_public_key(self, role: Role) -> ec.EllipticCurvePublicKey:
        """The public key of a role's authority; raises InsufficientTokenError where unknown."""
        if role is _ANCHORED.get(self.role):
            try:
                return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), self.anchor)
            except ValueError as error:
                raise MalformedTokenError(f"this token's authority key is damaged: {error}") from error
        return self.authority_key(role).public_key()

    def known_roles(self) -> tuple[Role, ...]:
        """The roles whose authorities this token's holder recognises."""
        if self.role is Role.CLIENT:
            return (Role.NODE, Role.CLIENT)
        return (Role.OPERATOR, Role.NODE, Role.CLIENT)

    def _derive_successor(self, role: Role) -> MeshToken:
        secret = _derive(self.secret, f"{role.value} token", DERIVED_SECRET_BYTES)
        point = self.authority_public_key(_ANCHORED[role]).public_bytes(
            Encoding.X962, PublicFormat.CompressedPoint
        )
        return MeshToken(secret, role, point)

    def _public(self, purpose: str, length: int) -> bytes:
        return _derive(self.for_role(Role.CLIENT).secret, purpose, length)


def _derive(secret: bytes, purpose: str, length: int) -> bytes:
    return HKDF(SHA256(), length, salt=b"rumormill v1", info=purpose.encode()).derive(secret)


def _checksum(role: Role, payload: bytes) -> bytes:
    return sha256(b"rumormill token" + role.value.encode() + payload).digest()[:CHECKSUM_BYTES]


def _split_prefix(text: str) -> tuple[Role, str]:
    for role in (Role.NODE, Role.CLIENT, Role.OPERATOR):
        if text.startswith(_PREFIXES[role]):
            return role, text[len(_PREFIXES[role]) :]
    raise MalformedTokenError(
        f"a mesh token starts with {_PREFIXES[Role.OPERATOR]!r}; make one with `rumormill token`"
    )
