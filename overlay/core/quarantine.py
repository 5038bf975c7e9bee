"""Peers that failed a request are left alone for a while: 0.5 s doubling to 30 s, one trial ends it.

Local knowledge only: what one node can't reach, another may.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlay.core.types import NodeId

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0


@dataclass(slots=True)
class _Record:
    failures: int
    until: float
    trial: bool = False


class Quarantine:
    """Times are the caller's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._records: dict[NodeId, _Record] = {}

    def failed(self, node_id: NodeId, now: float) -> None:
        record = self._records.setdefault(node_id, _Record(0, now))
        if now < record.until:
            return  # several requests that failed together are one failure
        record.until = now + min(FIRST_SECONDS * 2**record.failures, LONGEST_SECONDS)
        record.failures = min(record.failures + 1, 16)
        record.trial = False

    def succeeded(self, node_id: NodeId) -> None:
        self._records.pop(node_id, None)

    def began(self, node_id: NodeId) -> None:
        """A request was sent there: once the time is over, only one goes before its outcome is known."""
        if record := self._records.get(node_id):
            record.trial = True

    def abandoned(self, node_id: NodeId) -> None:
        """The request ended without saying anything of the peer (its client went away)."""
        if record := self._records.get(node_id):
            record.trial = False

    def remaining(self, node_id: NodeId, now: float) -> float:
        """Seconds for which the peer isn't chosen; infinite while its trial request runs."""
        record = self._records.get(node_id)
        if record is None:
            return 0.0
        if record.trial:
            return float("inf")
        return max(record.until - now, 0.0)

    def forget(self, node_id: NodeId) -> None:
        self._records.pop(node_id, None)
