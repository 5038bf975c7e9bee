from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import Authority
from certs.errors import CertificateRefusedError, InsufficientTokenError
from certs.identity import claimed_identity, key_id
from certs.roles import Role
from certs.token import MeshToken
from certs.trust import Anchor, Trust

TOKEN = MeshToken(bytes(range(32)))
NOW = datetime(2026, 12, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def new_key() -> ec.EllipticCurvePublicKey:
    return ec.generate_private_key(ec.SECP256R1()).public_key()


def trust_of(token: MeshToken) -> Trust:
    return Trust(
        Anchor(Authority.from_token(token, role).certificate(), frozenset({role}), token.mesh_id)
        for role in token.known_roles()
    )


def issue(role: Role, name: str | None = None, token: MeshToken = TOKEN) -> bytes:
    key = new_key()
    return (
        Authority.from_token(token, role).issue(key, name or key_id(key), DAY, NOW).public_bytes(Encoding.PEM)
    )


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("holder", Role)
def test_leaves_verify_with_what_any_holder_derives(role: Role, holder: Role) -> None:
    token = TOKEN.for_role(holder)
    trust = trust_of(token)
    leaf = issue(role)
    if role in token.known_roles():
        assert trust.identify(leaf, NOW).role is role
    else:
        with pytest.raises(CertificateRefusedError):
            trust.identify(leaf, NOW)


def test_the_anchor_is_the_same_but_for_its_signature_wherever_it_is_derived() -> None:
    own = Authority.from_token(TOKEN, Role.OPERATOR).certificate()
    recognised = Authority.from_token(TOKEN.for_role(Role.NODE), Role.OPERATOR).certificate()
    assert own.tbs_certificate_bytes == recognised.tbs_certificate_bytes


def test_whoever_only_recognises_an_authority_cannot_issue() -> None:
    authority = Authority.from_token(TOKEN.for_role(Role.NODE), Role.OPERATOR)
    with pytest.raises(InsufficientTokenError):
        authority.issue(new_key(), "someone", DAY, NOW)


def test_an_authority_speaks_for_its_own_role_only() -> None:
    key = new_key()
    node_authority = Authority.from_token(TOKEN, Role.NODE)
    forged = Authority(TOKEN.mesh_id, Role.OPERATOR, node_authority.public_key, node_authority.private_key)
    leaf = forged.issue(key, "root", DAY, NOW).public_bytes(Encoding.PEM)
    with pytest.raises(CertificateRefusedError, match="no trusted operator authority"):
        trust_of(TOKEN).identify(leaf, NOW)


def test_another_mesh_is_refused() -> None:
    with pytest.raises(CertificateRefusedError):
        trust_of(TOKEN).identify(issue(Role.NODE, token=MeshToken.make()), NOW)


def test_a_node_cannot_be_named_after_another_key() -> None:
    victim = key_id(new_key())
    with pytest.raises(CertificateRefusedError, match="not the id of its key"):
        trust_of(TOKEN).identify(issue(Role.NODE, victim), NOW)


@pytest.mark.parametrize(
    ("when", "message"),
    [(NOW + 2 * DAY, "expired"), (NOW - DAY, "clocks"), (NOW - timedelta(minutes=30), "")],
)
def test_validity_is_checked_each_time(when: datetime, message: str) -> None:
    trust = trust_of(TOKEN)
    leaf = issue(Role.NODE)
    assert trust.identify(leaf, NOW)
    if message:
        with pytest.raises(CertificateRefusedError, match=message):
            trust.identify(leaf, when)
    else:
        assert trust.identify(leaf, when)


def test_only_nodes_may_serve() -> None:
    for role in Role:
        leaf = x509.load_pem_x509_certificate(issue(role))
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert (x509.oid.ExtendedKeyUsageOID.SERVER_AUTH in usages) == (role is Role.NODE)


@pytest.mark.parametrize(
    "garbage", [b"", b"-----BEGIN CERTIFICATE-----\nAA==\n", b"\x30\x82", b"x" * 100_000]
)
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(CertificateRefusedError):
        trust_of(TOKEN).identify(garbage, NOW)


@pytest.mark.parametrize("name", ["UPPER", "a/b", "x" * 64, "a b"])
def test_names_that_are_no_identity_are_refused(name: str) -> None:
    leaf = Authority.from_token(TOKEN, Role.CLIENT).issue(new_key(), name, DAY, NOW)
    with pytest.raises(CertificateRefusedError, match="spiffe"):
        claimed_identity(leaf)
