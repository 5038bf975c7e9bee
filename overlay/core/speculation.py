"""What peers will soon have cached because a prompt was just forwarded to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from overlay.core.types import BlockHash, NodeId

MAX_CLAIMS = 65_536
"""About 128 prompts of 8,192 tokens in flight; the oldest are dropped first."""


class Speculation:
    """Short-lived claims that a node has a block, each of the same life."""

    def __init__(self, life_s: float) -> None:
        self._life_s = life_s
        self._expires: dict[NodeId, dict[int, float]] = {}
        self._order: deque[tuple[float, NodeId, int]] = deque()

    def add(self, now: float, node_id: NodeId, blocks: Sequence[BlockHash]) -> None:
        """Believes for a while that `node_id` has `blocks`."""
        expires = now + self._life_s
        claims = self._expires.setdefault(node_id, {})
        for block in blocks[:MAX_CLAIMS]:
            claims[block] = expires
            self._order.append((expires, node_id, block))
        self.expire(now)

    def expire(self, now: float) -> None:
        """Drops what is too old, or too much."""
        while self._order and (self._order[0][0] <= now or len(self._order) > MAX_CLAIMS):
            expires, node_id, block = self._order.popleft()
            claims = self._expires.get(node_id, {})
            if claims.get(block) == expires:
                del claims[block]
                if not claims:
                    del self._expires[node_id]

    def forget(self, node_id: NodeId) -> None:
        """Drops every claim about a peer that is gone."""
        self._expires.pop(node_id, None)

    def extend(self, depths: dict[NodeId, int], blocks: Sequence[BlockHash]) -> dict[NodeId, int]:
        """Raises each peer's match by the claims that continue it."""
        for node_id, claims in self._expires.items():
            depth = depths.get(node_id, 0)
            while depth < len(blocks) and blocks[depth] in claims:
                depth += 1
            if depth:
                depths[node_id] = depth
        return depths
