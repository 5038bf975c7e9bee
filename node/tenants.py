"""Which callers share cached prefixes: all, or each only with itself.

A cached prompt answers sooner, so whoever shares a cache can find out what others asked. With isolation on,
every caller's blocks hash under a salt of its own, which the node derives from who the caller proved to be,
never from what a request says. Equal on every node of the mesh, so a tenant's prefixes still match there.
"""

from __future__ import annotations

from hashlib import blake2b

SALT_BYTES = 16


class Tenants:
    """Salts for callers; `key` is a secret of the mesh."""

    def __init__(self, key: bytes, *, isolated: bool) -> None:
        self._key = blake2b(key, digest_size=32, person=b"rumormill-tenant").digest()
        self._isolated = isolated

    def salt(self, caller: str) -> bytes:
        """The salt of an authenticated caller; empty when all callers share."""
        if not self._isolated:
            return b""
        return blake2b(caller.encode(), digest_size=SALT_BYTES, key=self._key).digest()
