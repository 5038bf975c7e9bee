"""What the nodes hear of each other: block sets by gossip, loads by report and with every answer.

The overlay's own protocol is simulated elsewhere; here a delta or a report arrives whole, one delay after
it was told. As the delay is the same for all, all hear the same, and one shipped index serves every node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from overlay.core.prefix_index import PrefixIndex
from overlay.core.speculation import Speculation
from overlay.core.types import BlockHash, Load, NodeId
from overlay.core.views import PeerState, PeerView

MODEL = b"simulated"


class Rumours:
    """What has been told to everybody and has arrived."""

    def __init__(self, node_ids: Sequence[NodeId], rtt_s: float) -> None:
        self.index = PrefixIndex()
        self.liars: frozenset[NodeId] = frozenset()
        self.views = {node_id: _view(node_id, rtt_s) for node_id in node_ids}

    def heard_blocks(
        self, node_id: NodeId, stored: Sequence[BlockHash], removed: Sequence[BlockHash]
    ) -> None:
        self.index.remove(node_id, removed)
        self.index.add(node_id, stored)

    def heard_load(self, node_id: NodeId, load: Load) -> None:
        self.views[node_id] = replace(self.views[node_id], load=load)


class NodeHearsay:
    """One node's view, as its router asks for it: what all heard, and what only this node knows."""

    def __init__(self, node_id: NodeId, rumours: Rumours, own_load: Load, forwarded_s: float) -> None:
        self.node_id = node_id
        self.now = 0.0
        self.load = own_load
        self._rumours = rumours
        self._speculation = Speculation(forwarded_s)
        self._told: dict[NodeId, PeerView] = {}

    def match(self, hashes: Sequence[BlockHash]) -> Mapping[NodeId, int]:
        """Leading blocks that each peer is believed to have."""
        depths = self._rumours.index.match(hashes)
        depths.pop(self.node_id, None)
        self._speculation.expire(self.now)
        self._speculation.extend(depths, hashes)
        for liar in self._rumours.liars - {self.node_id}:
            depths[liar] = len(hashes)
        return depths

    def peers(self) -> tuple[PeerView, ...]:
        """Every peer with the freshest load heard of it."""
        views = []
        for node_id, heard in self._rumours.views.items():
            if node_id == self.node_id:
                continue
            told = self._told.get(node_id)
            views.append(told if told is not None and _sequence(told) > _sequence(heard) else heard)
        return tuple(views)

    def own_load(self) -> Load:
        return self.load

    def is_reachable(self, node_id: NodeId) -> bool:
        return True

    def observe(self, node_id: NodeId, load: Load) -> None:
        """An answer carried a load report."""
        self._told[node_id] = replace(self._rumours.views[node_id], load=load)

    def forwarded(self, node_id: NodeId, hashes: Sequence[BlockHash]) -> None:
        """A prompt was sent to a node, which will have it cached."""
        self._speculation.add(self.now, node_id, hashes)


def _sequence(view: PeerView) -> int:
    return view.load.sequence if view.load is not None else -1


def _view(node_id: NodeId, rtt_s: float) -> PeerView:
    return PeerView(
        node_id=node_id,
        state=PeerState.ALIVE,
        connected=True,
        addresses=(),
        model=MODEL,
        model_name="",
        http_url="",
        rtt_s=rtt_s,
        load=None,
        load_age_s=None,
        cached_blocks=0,
        replica_age_s=None,
    )
