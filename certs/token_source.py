"""Credentials from a mesh token: authorities derived, leaves issued by their own holder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import Authority
from certs.credentials import Credentials, Material
from certs.identity import claimed_identity, key_id
from certs.node_key import load_or_create_node_key
from certs.roles import Role
from certs.token import MeshToken
from certs.trust import Anchor, Denylist, Trust, utc_now

LEAF_LIFETIME = timedelta(days=30)
CALLER_LEAF_LIFETIME = timedelta(days=1)
DENYLIST_FILE = "denylist"


class TokenSource:
    """Issues this process's leaf, and a new one when a third of its life is left.

    `tokens` are those accepted, the own one first: while a mesh changes its token, nodes accept the
    old and the new one.
    """

    def __init__(
        self,
        tokens: Sequence[MeshToken],
        role: Role,
        key: ec.EllipticCurvePrivateKey,
        denylist: Denylist,
        lifetime: timedelta = LEAF_LIFETIME,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Raises InsufficientTokenError when a token is of a lesser role than `role`."""
        self.denylist = denylist
        self._role = role
        self._key = key
        self._lifetime = lifetime
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = tuple(tokens)
        self._trust = _trust_of(self._tokens)
        self._material = self._issue()

    def current(self) -> Material:
        with self._lock:
            if self._material.identity.not_after - self._clock() <= self._lifetime / 3:
                self._material = self._issue()
            return self._material

    def _issue(self) -> Material:
        public_key = self._key.public_key()
        now = self._clock()
        leaves = [
            Authority.from_token(token, self._role).issue(public_key, key_id(public_key), self._lifetime, now)
            for token in self._tokens
        ]
        return Material(
            identity=claimed_identity(leaves[0]),
            key=self._key,
            chains=tuple(leaf.public_bytes(Encoding.PEM) for leaf in leaves),
            trust=self._trust,
            discovery_tags=tuple(token.discovery_tag for token in self._tokens),
            block_hash_key=self._tokens[0].block_hash_key if self._role is Role.NODE else None,
        )


def node_credentials(
    token: MeshToken, state_dir: Path, *, also_accepted: Sequence[MeshToken] = ()
) -> Credentials:
    """A node's credentials, with its key and denylist in `state_dir`; raises a CertsError."""
    return Credentials(
        TokenSource(
            (token, *also_accepted),
            Role.NODE,
            load_or_create_node_key(state_dir),
            Denylist(state_dir / DENYLIST_FILE),
        )
    )


def caller_credentials(token: MeshToken, role: Role) -> Credentials:
    """Credentials of one command, with a key that lives as long as the process; raises a CertsError."""
    return Credentials(
        TokenSource(
            (token,), role, ec.generate_private_key(ec.SECP256R1()), Denylist(None), CALLER_LEAF_LIFETIME
        )
    )


def _trust_of(tokens: Sequence[MeshToken]) -> Trust:
    return Trust(
        Anchor(Authority.from_token(token, role).certificate(), frozenset({role}), token.mesh_id)
        for token in tokens
        for role in token.known_roles()
    )
