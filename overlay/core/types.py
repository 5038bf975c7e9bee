"""The values the whole overlay speaks in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

NodeId = NewType("NodeId", str)
"""SHA-256 of a node's public key (SPKI), as 52 characters of lower-case base32 without padding."""

BlockHash = NewType("BlockHash", int)
"""64-bit keyed hash of a block chained on its parent's: it names a whole prefix."""

Epoch = NewType("Epoch", int)
"""A node's incarnation of its set: persisted, strictly rising."""

Version = NewType("Version", int)
"""A set's change counter inside one epoch, from 0."""

SHORT_ID_CHARACTERS = 8


def short_id(node_id: NodeId) -> str:
    """What people are shown of a node id."""
    return node_id[:SHORT_ID_CHARACTERS]


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a node listens for gRPC; `host` is an IP literal or a DNS name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a node is, as it measured itself; times in seconds."""

    epoch: Epoch
    sequence: int
    running: int = 0
    waiting: int = 0
    queued_prefill_tokens: int = 0
    seconds_per_prefill_token: float = 0.0
    seconds_per_decode_step: float = 0.0
    prefill_tokens_per_step: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    draining: bool = False
    accepting: bool = True
