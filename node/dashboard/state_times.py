"""Since when peers are what they are, so that a node that is gone says since when."""

from __future__ import annotations

import time
from collections.abc import Callable

from overlay.core.types import NodeId
from overlay.core.views import PeerState


class StateTimes:
    """When this node's belief about each peer last changed, in unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._changed: dict[NodeId, float] = {}

    def note(self, node_id: NodeId, state: PeerState | None) -> None:
        """The belief changed now; `state` is None when the peer was forgotten."""
        if state is None:
            self._changed.pop(node_id, None)
        else:
            self._changed[node_id] = self._clock()

    def since(self, node_id: NodeId) -> float | None:
        """None for a peer whose state has not changed since this node started."""
        return self._changed.get(node_id)
