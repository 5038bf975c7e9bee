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


class Outlook:
    """Averages per node, each sample counting less with age; times in seconds."""

    def __init__(self) -> None:
        self.usual_tokens = 0.0
        self._busy: dict[NodeId, float] = {}
        self._waits: dict[NodeId, float] = {}
        self._at: float | None = None
        self._samples = 0

    def weigh(self, now: float) -> float:
        """The weight of the samples that are taken now; of the first few, all weigh the same."""
        since, self._at = 0.0 if self._at is None else now - self._at, now
        self._samples += 1
        return max(1.0 - math.exp(-max(since, 0.0) / HORIZON_S), 1.0 / self._samples)

    def sampled(self, node_id: NodeId, weight: float, busy: bool, usual_s: float) -> None:
        """A node had prompts to compute or not, and would have taken `usual_s` for a usual request."""
        before = self._busy.get(node_id, 0.0)
        self._busy[node_id] = before + weight * (busy - before)
        wait = self._waits.get(node_id, usual_s)
        self._waits[node_id] = wait + weight * (usual_s - wait)

    def asked(self, uncached_tokens: int) -> None:
        """A request was routed to where so many of its tokens have to be computed."""
        before = self.usual_tokens or float(uncached_tokens)
        self.usual_tokens = before + REQUEST_WEIGHT * (uncached_tokens - before)

    def utilisation(self, node_id: NodeId) -> float:
        """The share of time for which a node has prompts to compute, from 0 to 1."""
        return self._busy.get(node_id, 0.0)

    def usual_s(self, node_id: NodeId) -> float:
        """The average time to first token of a usual request on a node."""
        return self._waits.get(node_id, 0.0)

    def forget(self, node_id: NodeId) -> None:
        self._busy.pop(node_id, None)
        self._waits.pop(node_id, None)
