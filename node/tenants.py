"""Which callers share cached prefixes and whose work is whose.

A cached prompt answers sooner, so whoever shares a cache can find out what others asked. With isolation on,
every caller's blocks hash under a salt of its own, which the node derives from who the caller proved to be,
never from what a request says. Equal on every node of the mesh, so a tenant's prefixes still match there.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller as engines know it: a `salt` for its prefixes; `client` is whom its work is counted for."""

    salt: bytes
    client: str


NOBODY: Final = Caller(b"", "")


class Tenants:
    """Salts for callers; `key` is a secret of the mesh."""

    def __init__(self, key: bytes, *, isolated: bool) -> None:
        self._key = blake2b(key, digest_size=32, person=b"rumormill-tenant").digest()
        self._isolated = isolated

    def caller(self, identity: str) -> Caller:
        """An authenticated caller, equal on every node; its salt is empty when all share."""
        digest = blake2b(identity.encode(), digest_size=SALT_BYTES, key=self._key).digest()
        client = blake2b(identity.encode(), digest_size=SALT_BYTES, key=self._key, person=b"client")
        return Caller(digest if self._isolated else b"", client.hexdigest())
