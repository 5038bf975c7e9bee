"""How far a peer's claims of cached prefixes are believed: as far as they came true.

A wrong claim costs one cache miss. A peer whose claims keep failing, by stale gossip or by lying, loses
its advantage within a few answers, and is believed again little by little in case it has mended: the more
often it failed, the more slowly.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlay.core.types import NodeId

WEIGHT = 0.5
"""Of the latest answer in the running average, but the first counts whole: a peer whose first claim was
false has shown nothing else, and of one that is known three in a row leave an eighth."""

LEAST = 0.2
"""A peer that is believed less than this is not believed at all: the smallest advantage is one."""

FORGET_SECONDS = 60.0
LONGEST_FORGET_SECONDS = 600.0
"""Half of a distrust is forgotten in this time; it doubles with every claim that fails wholly, so that a
liar is tried again ever more rarely, and halves with every one that comes true."""


@dataclass(frozen=True, slots=True)
class _Record:
    trust: float
    at: float
    forget_s: float = FORGET_SECONDS


class Trust:
    """Per peer, from 0 to 1; times are the caller's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._records: dict[NodeId, _Record] = {}
        self._pending: dict[NodeId, int] = {}

    def of(self, node_id: NodeId, now: float) -> float:
        record = self._records.get(node_id)
        if record is None:
            return 1.0 / max(self._pending.get(node_id, 0), 1)
        trust = _mended(record, now)
        return trust if trust >= LEAST else 0.0

    def began(self, node_id: NodeId) -> None:
        """A claim is relied on. Of a peer that has shown nothing yet, two are at once, and then less."""
        self._pending[node_id] = self._pending.get(node_id, 0) + 1

    def ended(self, node_id: NodeId) -> None:
        """A claim that was relied on has shown its truth, or never will."""
        left = self._pending.pop(node_id, 0) - 1
        if left > 0:
            self._pending[node_id] = left

    def learned(self, node_id: NodeId, claimed_tokens: int, cached_tokens: int, now: float) -> None:
        """An answer told how many tokens were cached of those that the peer had claimed."""
        if not claimed_tokens:
            return
        kept = min(cached_tokens / claimed_tokens, 1.0)
        record = self._records.get(node_id, _Record(kept, now))
        before, forget_s = _mended(record, now), record.forget_s
        if kept < LEAST:
            forget_s = min(forget_s * 2.0, LONGEST_FORGET_SECONDS)
        elif kept > 1.0 - LEAST:
            forget_s = max(forget_s / 2.0, FORGET_SECONDS)
        self._records[node_id] = _Record(before + WEIGHT * (kept - before), now, forget_s)

    def forget(self, node_id: NodeId) -> None:
        self._records.pop(node_id, None)
        self._pending.pop(node_id, None)


def _mended(record: _Record, now: float) -> float:
    kept: float = 0.5 ** ((now - record.at) / record.forget_s)
    return 1.0 - (1.0 - record.trust) * kept
