"""Block hashes: 64-bit keyed hashes, each chained on its parent's, so that one names a whole prefix.

The key is a secret of the mesh: without it a hash tells nothing about the tokens behind it.
BLAKE2b keyed mode: RFC 7693.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

HASH_VERSION = 1


@dataclass(frozen=True, slots=True)
class Namespace:
    """The root of a hash chain; blocks of different namespaces never match.

    `model` digests weights, tokenizer, block size and hash version; `salt` separates tenants.
    """

    model: bytes
    salt: bytes = b""


def model_digest(weights: bytes, tokenizer: bytes, block_size: int) -> bytes:
    """The 16-byte model part of a namespace, from two content fingerprints."""
    digest = blake2b(digest_size=16, person=b"rumormill-model")
    for part in (weights, tokenizer):
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    digest.update(struct.pack("<II", block_size, HASH_VERSION))
    return digest.digest()


class BlockHasher:
    """Hashes the full blocks of token sequences under one mesh key."""

    def __init__(self, key: bytes, block_size: int) -> None:
        if not 16 <= len(key) <= 64:
            raise ValueError(f"a block hash key has 16 to 64 bytes, not {len(key)}")
        if block_size < 1:
            raise ValueError("block_size must be positive")
        self._key = key
        self.block_size = block_size

    def root(self, namespace: Namespace) -> int:
        """The hash that the first block of a namespace chains on."""
        message = len(namespace.model).to_bytes(4, "little") + namespace.model + namespace.salt
        return int.from_bytes(blake2b(message, digest_size=8, key=self._key).digest(), "little")

    def child(self, parent: int, block: Sequence[int]) -> int:
        """The hash of one block of token ids after `parent`."""
        message = parent.to_bytes(8, "little") + array("I", block).tobytes()
        return int.from_bytes(blake2b(message, digest_size=8, key=self._key).digest(), "little")

    def prefix(self, namespace: Namespace, token_ids: Sequence[int]) -> list[int]:
        """The hashes of all full blocks of `token_ids`, first to last."""
        size = self.block_size
        parent = self.root(namespace)
        hashes = []
        for start in range(0, len(token_ids) - size + 1, size):
            parent = self.child(parent, token_ids[start : start + size])
            hashes.append(parent)
        return hashes
