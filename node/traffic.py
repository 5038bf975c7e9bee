"""How many requests that entered here were sent to each peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from overlay.core.types import NodeId


class Traffic:
    """Counts since the node's start; as many peers as the mesh has."""

    def __init__(self) -> None:
        self._sent = Counter[NodeId]()

    @property
    def sent(self) -> Mapping[NodeId, int]:
        """Requests by the peer they were sent to, those it refused or lost included."""
        return self._sent

    def note_sent(self, node_id: NodeId) -> None:
        self._sent[node_id] += 1

    def forget(self, node_id: NodeId) -> None:
        """The peer left the mesh."""
        del self._sent[node_id]
