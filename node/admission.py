"""How much work this node lets queue up before it tells peers BUSY, and before it refuses its own clients."""

from __future__ import annotations

from engine.interface import EngineStats

LOCAL_ALLOWANCE = 2
"""An entry node queues this times what it would take from peers: its clients have nowhere else to go."""

SHORTEST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 30.0


class Admission:
    """Judged before any prefill, by the uncached prompt tokens already queued."""

    def __init__(self, max_queued_tokens: int, max_requests: int) -> None:
        """`max_requests` is how many live requests the engine holds."""
        self.max_queued_tokens = max_queued_tokens
        self.max_requests = max_requests
        self.draining = False

    def accepts_peers(self, stats: EngineStats) -> bool:
        return (
            not self.draining
            and self._has_slot(stats)
            and stats.queued_prefill_tokens < self.max_queued_tokens
        )

    def accepts_clients(self, stats: EngineStats) -> bool:
        allowed = self.max_queued_tokens * LOCAL_ALLOWANCE
        return self._has_slot(stats) and stats.queued_prefill_tokens < allowed

    def _has_slot(self, stats: EngineStats) -> bool:
        return stats.running + stats.waiting < self.max_requests

    def retry_after_s(self, stats: EngineStats) -> float:
        """When half of what is queued will be done, by this engine's own measured rate."""
        wait = stats.queued_prefill_tokens * stats.seconds_per_prefill_token / 2
        return min(max(wait, SHORTEST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
