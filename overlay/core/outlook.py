"""How busy every node was lately, as this one saw it at its own decisions.

Arrivals see time averages (PASTA, Wolff 1982), so no clock of its own is needed.
"""

from __future__ import annotations

import math

from overlay.core.types import NodeId

HORIZON_S = 30.0
"""How far back it looks, and so how far ahead the router plans: long enough to tell a busy node from a
busy moment, short enough to follow a change of load within a minute."""

REQUEST_WEIGHT = 0.05
"""Of the latest request in the size of a usual one: about the last twenty count."""


GAP_WEIGHT = 0.3
"""Of the latest pause between requests in the usual one: bursts are short, and are to be seen in time."""


class Outlook:
    """Averages, each sample counting less with age; times in seconds."""

    def __init__(self) -> None:
        self.usual_tokens = 0.0
        """Tokens of a request that are computed, and not found cached."""
        self.utilisation = 0.0
        """The share of time for which nodes have prompts to compute, from 0 to 1."""
        self._waits: dict[NodeId, float] = {}
        self._at: float | None = None
        self._samples = 0
        self._gap_s = 0.0

    def weigh(self, now: float) -> float:
        """The weight of the samples that are taken now; of the first few, all weigh the same."""
        since, self._at = 0.0 if self._at is None else now - self._at, now
        self._samples += 1
        if self._samples > 1:
            before = self._gap_s if self._samples > 2 else since
            self._gap_s = before + GAP_WEIGHT * (since - before)
        return max(1.0 - math.exp(-max(since, 0.0) / HORIZON_S), 1.0 / self._samples)

    def sampled(self, node_id: NodeId, weight: float, wait_s: float) -> None:
        """A usual request would now wait so long on a node."""
        before = self._waits.get(node_id, wait_s)
        self._waits[node_id] = before + weight * (wait_s - before)

    def busy(self, weight: float, share: float) -> None:
        """So many of the nodes have prompts to compute now."""
        self.utilisation += weight * (share - self.utilisation)

    def asked(self, uncached_tokens: int) -> None:
        """A request was routed to where so many of its tokens have to be computed."""
        before = self.usual_tokens or float(uncached_tokens)
        self.usual_tokens = before + REQUEST_WEIGHT * (uncached_tokens - before)

    def expected(self, seconds: float) -> float:
        """Requests that this node will route in so long a time, if they go on to come as lately."""
        return seconds / max(self._gap_s, 1e-6) if self._samples > 1 else 0.0

    def usual_wait_s(self, node_id: NodeId) -> float:
        """The average wait of a usual request on a node."""
        return self._waits.get(node_id, 0.0)

    def forget(self, node_id: NodeId) -> None:
        self._waits.pop(node_id, None)
