"""Whom to be connected to: everyone in a small mesh, a few at random in a large one.

Above `full_mesh` peers known, a node keeps about `degree` streams, chosen at random among those it has
heard of, so that the mesh is an expander with high probability (random regular graphs; compare
HyParView, Leitao et al., DSN 2007). What a node knows is then bounded by its neighbours and theirs, and
doesn't grow with the mesh.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from overlay.core.dialer import Dialer
from overlay.core.links import Link, LinkTable
from overlay.core.members import MemberTable, PeerRecord
from overlay.core.types import NodeId
from overlay.core.views import PeerState

DIALS_PER_BEAT = 4
"""Streams opened per round: others open some to this node meanwhile."""

DIALS_PER_S = 64
"""Rate at which a node that knows many opens streams to all of them."""

CHOSEN_BEATS = 10
"""Rounds in which a chosen peer must connect, before another is chosen."""

SETTLED_S = 2.0
"""A stream this young isn't closed for being one too many: a newcomer learns whom else to ask."""

REWIRE_BEATS = 120
"""Rounds between random replacements of one stream, which mix what would otherwise cluster."""


@dataclass(slots=True, eq=False)
class Topology:
    """Decides which peers to dial and which streams are too many."""

    table: MemberTable
    links: LinkTable
    dialer: Dialer
    rng: random.Random
    full_mesh: int
    degree: int
    bounded: bool = False
    _chosen: dict[NodeId, int] = field(default_factory=dict)
    _beats: int = 0

    @property
    def most(self) -> int:
        """Streams above this are closed, youngest excepted."""
        return self.degree * 3 // 2

    @property
    def fewest(self) -> int:
        """Streams below this are made up for."""
        return self.degree * 3 // 4

    def crowd(self) -> float:
        """How many times longer to wait between calls on a seed, which all other nodes call on too."""
        return max(1.0, len(self.table) / self.degree) if self.bounded else 1.0

    def size_changed(self) -> None:
        """Looks again whether everyone can be connected to everyone; narrowly, so as not to swing."""
        limit = self.full_mesh * 3 // 4 if self.bounded else self.full_mesh
        self.bounded = len(self.table) > limit and len(self.table) - self.table.gone() >= limit

    def wants(self, peer: PeerRecord) -> bool:
        """Whether a peer that was just found should be dialled."""
        if not self.bounded and len(self.table) >= self.full_mesh:
            self.size_changed()
        if not self.bounded:
            return True
        return len(self.links.connected()) + len(self._chosen) < self.fewest

    def still_wants(self, node_id: NodeId) -> bool:
        """Whether a dial planned some time ago should still be made."""
        if not self.bounded or node_id in self._chosen or self._is_lost(node_id):
            return True
        return len(self.links.connected()) < self.fewest

    def reclaim(self, node_id: NodeId) -> None:
        """A stream broke: the peer is called back, which refutes a suspicion and heals a split."""
        if self.bounded:
            self._chosen[node_id] = self._beats

    def _is_lost(self, node_id: NodeId) -> bool:
        peer = self.table.get(node_id)
        return peer is not None and peer.state in (PeerState.SUSPECT, PeerState.DEAD)

    def patience_s(self) -> float:
        """How long to spread dials, so as to notice in time that a mesh is too large to dial everyone."""
        return len(self.table) / DIALS_PER_S if len(self.table) > self.degree else 0.0

    def beat(self, now: float) -> list[Link]:
        """Once a round: dials what is missing; returns the streams that are too many."""
        self.size_changed()
        if not self.bounded:
            self._dial_everyone(now)
            return []
        self._beats += 1
        connected = self.links.connected()
        for node_id, beat in list(self._chosen.items()):
            if self.links.active(node_id) is not None:
                del self._chosen[node_id]
            elif self._beats - beat > CHOSEN_BEATS:
                del self._chosen[node_id]
                if not self._is_lost(node_id):
                    self.dialer.drop(node_id)
        if len(connected) < self.fewest or (self._chosen and len(connected) < self.degree):
            self._choose(now, self.degree - len(connected) - len(self._chosen))
        return self._too_many(now, connected)

    def _choose(self, now: float, missing: int) -> None:
        if missing <= 0:
            return
        strangers = [
            peer
            for peer in self.table
            if not peer.gone and self.links.active(peer.node_id) is None and peer.node_id not in self._chosen
        ]
        for peer in self.rng.sample(strangers, min(missing, DIALS_PER_BEAT, len(strangers))):
            self._chosen[peer.node_id] = self._beats
            self.dialer.want(now, peer.node_id, peer.addresses)

    def _too_many(self, now: float, connected: list[NodeId]) -> list[Link]:
        surplus = len(connected) - self.most
        if surplus <= 0 and len(connected) > self.fewest and self._beats % REWIRE_BEATS == 0:
            surplus = 1
        if surplus <= 0:
            return []
        settled = [link for link in self.links.ready() if now - link.opened_at > SETTLED_S]
        return self.rng.sample(settled, min(surplus, len(settled)))

    def _dial_everyone(self, now: float) -> None:
        """After a large mesh has shrunk, those not dialled before are due."""
        if self._chosen or self._beats:
            self._chosen.clear()
            self._beats = 0
            for peer in self.table:
                if not peer.gone and self.links.active(peer.node_id) is None:
                    self.dialer.want(now, peer.node_id, peer.addresses)
