"""How far a peer's claims of cached prefixes are believed: as far as they came true.

A wrong claim costs one cache miss. A peer whose claims keep failing, by stale gossip or by lying, loses
its advantage within a few answers, and is believed again little by little in case it has mended.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlay.core.types import NodeId

WEIGHT = 0.3
"""Of the latest answer in the running average: five failed claims in a row leave a sixth of the trust."""

FORGET_SECONDS = 60.0
"""Half of a distrust is forgotten in this time."""


@dataclass(frozen=True, slots=True)
class _Record:
    trust: float
    at: float


class Trust:
    """Per peer, from 0 to 1; times are the caller's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._records: dict[NodeId, _Record] = {}

    def of(self, node_id: NodeId, now: float) -> float:
        record = self._records.get(node_id)
        if record is None:
            return 1.0
        kept: float = 0.5 ** ((now - record.at) / FORGET_SECONDS)
        return 1.0 - (1.0 - record.trust) * kept

    def learned(self, node_id: NodeId, claimed_tokens: int, cached_tokens: int, now: float) -> None:
        """An answer told how many tokens were cached of those that the peer had claimed."""
        if not claimed_tokens:
            return
        kept = min(cached_tokens / claimed_tokens, 1.0)
        before = self.of(node_id, now)
        self._records[node_id] = _Record(before + WEIGHT * (kept - before), now)

    def forget(self, node_id: NodeId) -> None:
        self._records.pop(node_id, None)
