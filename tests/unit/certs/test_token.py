from __future__ import annotations

from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from certs.errors import InsufficientTokenError, MalformedTokenError, WeakTokenError
from certs.identity import base32
from certs.roles import Role
from certs.token import CHECKSUM_BYTES, MeshToken

TOKEN = MeshToken(bytes(range(32)))


def test_a_new_token_has_256_bits_and_differs_from_the_next() -> None:
    first, second = MeshToken.make(), MeshToken.make()
    assert len(first.secret) == 32
    assert first != second
    assert first.mesh_id != second.mesh_id


@pytest.mark.parametrize("role", Role)
def test_text_round_trip(role: Role) -> None:
    token = TOKEN.for_role(role)
    assert MeshToken.parse(str(token)) == token
    assert MeshToken.parse(f"  {str(token).upper()}\n") == token


@settings(deadline=None)
@given(st.binary(min_size=16, max_size=64).filter(lambda secret: len(set(secret)) > 1))
def test_any_length_of_secret_round_trips(secret: bytes) -> None:
    token = MeshToken(secret)
    assert MeshToken.parse(str(token)) == token


@pytest.mark.parametrize("role", Role)
def test_every_single_typo_is_seen(role: Role) -> None:
    text = str(TOKEN.for_role(role))
    for place in range(text.rindex("_") + 1, len(text)):
        wrong = text[:place] + ("a" if text[place] != "a" else "b") + text[place + 1 :]
        # The last character holds padding bits that carry nothing.
        if place < len(text) - 1:
            with pytest.raises(MalformedTokenError):
                MeshToken.parse(wrong)


@pytest.mark.parametrize(
    "text", ["", "hunter2", "rumormill_", "rumormill_node_abc", "rumormill_é", "rumormill_01"]
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(MalformedTokenError):
        MeshToken.parse(text)


@pytest.mark.parametrize("secret", [b"", b"fifteen bytes!!", bytes(32)])
def test_weak_tokens_are_refused(secret: bytes) -> None:
    with pytest.raises(WeakTokenError, match="rumormill token"):
        MeshToken(secret)
    with pytest.raises(WeakTokenError):
        MeshToken.make(15)


def test_a_weak_token_with_a_right_checksum_is_weak_not_mistyped() -> None:
    payload = b"fifteen bytes!!"
    checksum = sha256(b"rumormill token" + b"operator" + payload).digest()[:CHECKSUM_BYTES]
    text = "rumormill_" + base32(payload + checksum)
    with pytest.raises(WeakTokenError, match="120 bits"):
        MeshToken.parse(text)


def test_the_secret_stays_out_of_repr() -> None:
    assert TOKEN.secret.hex() not in repr(TOKEN)
    assert repr(TOKEN.secret) not in repr(TOKEN)


def test_every_role_names_the_same_mesh() -> None:
    tokens = [TOKEN.for_role(role) for role in Role]
    assert len({token.mesh_id for token in tokens}) == 1
    assert len({token.discovery_tag for token in tokens}) == 1
    assert TOKEN.mesh_id != TOKEN.discovery_tag


def test_derivation_is_one_way() -> None:
    node, client = TOKEN.for_role(Role.NODE), TOKEN.for_role(Role.CLIENT)
    assert node.for_role(Role.CLIENT) == client
    assert node.block_hash_key == TOKEN.block_hash_key
    for token, above in [(node, Role.OPERATOR), (client, Role.NODE), (client, Role.OPERATOR)]:
        with pytest.raises(InsufficientTokenError):
            token.for_role(above)
        with pytest.raises(InsufficientTokenError):
            token.authority_key(above)
    with pytest.raises(InsufficientTokenError):
        client.block_hash_key  # noqa: B018  the property raises


def test_lesser_tokens_recognise_the_authorities_they_need() -> None:
    keys = {role: TOKEN.authority_key(role).public_key() for role in Role}
    assert len({key.public_numbers().x for key in keys.values()}) == 3
    for role in Role:
        token = TOKEN.for_role(role)
        for known in token.known_roles():
            assert token.authority_public_key(known) == keys[known]
    with pytest.raises(InsufficientTokenError):
        TOKEN.for_role(Role.CLIENT).authority_public_key(Role.OPERATOR)


def test_derived_values_never_change() -> None:
    """A change here would split every running mesh."""
    assert str(TOKEN) == "rumormill_aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypumdbd"
    assert TOKEN.mesh_id == "2vignlb6buj5jxy6"
    assert TOKEN.block_hash_key.hex() == "fa72182df3a4087ec22635b0ff9bc1acbeed101fafd31ce1cc5f63ee5485bd22"
    scalar = TOKEN.authority_key(Role.NODE).private_numbers().private_value
    assert 0 < scalar < ec.SECP256R1().group_order
    assert f"{scalar:x}" == "431fc55599ef9e08ded488c7e860ee6e03c9c19fc9763d8c4965b5f5102591d"
