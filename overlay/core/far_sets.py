"""What peers without a stream have cached, in a mesh too large for everyone to follow everyone.

Every node makes a signed Bloom filter of its own set now and then, and sends it to its neighbours, who
pass it on to theirs, once. So a node knows the sets of its neighbours' neighbours about as they were a
minute ago, at a cost that depends on the degree and not on the size of the mesh.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from overlay.core import bloom
from overlay.core.errors import ProtocolError
from overlay.core.hashes import to_array
from overlay.core.heads import KeyRing, filter_payload
from overlay.core.limits import MAX_EPOCH, MAX_FAR_BYTES, MAX_FAR_SETS
from overlay.core.links import Link, LinkTable
from overlay.core.messages import Filter
from overlay.core.options import Signer
from overlay.core.outbox import Outbox
from overlay.core.own_set import OwnSet
from overlay.core.timers import Timers
from overlay.core.timing import Timing
from overlay.core.types import BlockHash, NodeId

REPEAT_UNCHANGED = 5
"""A filter that hasn't changed is sent only every so many times."""

STALE_AFTER = 12
"""A filter not renewed for this many times is dropped."""


@dataclass(slots=True, eq=False)
class FarSet:
    """One far node's filter, and when it came."""

    summary: Filter
    bits: npt.NDArray[np.uint8]
    at: float


@dataclass(slots=True, eq=False)
class FarSets:
    """Filters of this node, its neighbours (to pass on) and their neighbours (to look up)."""

    own_id: NodeId
    own: OwnSet
    model: bytes
    keys: KeyRing
    signer: Signer
    links: LinkTable
    timing: Timing
    timers: Timers
    outbox: Outbox
    rng: random.Random
    known: Callable[[NodeId], bool]
    far: dict[NodeId, FarSet] = field(default_factory=dict)
    _near: dict[NodeId, Filter] = field(default_factory=dict)
    _own: Filter | None = None
    _rounds: int = 0
    _active: bool = False

    def set_active(self, now: float, active: bool) -> None:
        """Filters are made and sent only in a mesh of bounded degree."""
        if active and not self._active:
            self.timers.at(now + self.timing.filter_s * self.rng.random(), self._publish)
        self._active = active
        if not active:
            self.far.clear()

    def connected(self, link: Link) -> None:
        """A new neighbour hears of this node's set and those of its other neighbours."""
        self.far.pop(link.peer, None)
        if not self._active or not link.follows:
            return
        if self._own is not None:
            self.outbox.send(link.id, self._own)
        for origin, summary in self._near.items():
            self._relay(link, origin, summary)

    def disconnected(self, peer: NodeId) -> None:
        self._near.pop(peer, None)

    def forget(self, node_id: NodeId) -> None:
        """A node is gone."""
        self.far.pop(node_id, None)
        self._near.pop(node_id, None)

    def sweep(self, now: float) -> None:
        """Drops what hasn't been renewed."""
        oldest = now - STALE_AFTER * self.timing.filter_s
        for origin in [origin for origin, far in self.far.items() if far.at < oldest]:
            del self.far[origin]

    def on_filter(self, now: float, link: Link, summary: Filter) -> None:
        """Keeps and passes on a neighbour's filter; keeps a far one that its origin signed."""
        origin = summary.origin or link.peer
        if not bloom.is_sound(summary.bits, summary.probes) or not 0 < summary.epoch < MAX_EPOCH:
            raise ProtocolError("a filter of an impossible shape")
        if origin == self.own_id or summary.model != self.model:
            return
        near = origin == link.peer
        if not near and (not self.known(origin) or self.links.active(origin) is not None):
            return
        verified = self.keys.verified(origin, summary)
        if verified is None:
            return
        if near:
            self._near[origin] = verified
            for other in self.links.ready():
                if other is not link and other.follows:
                    self._relay(other, origin, verified)
        else:
            self._keep(now, origin, verified)

    def match(self, hashes: Sequence[BlockHash], depths: dict[NodeId, int]) -> dict[NodeId, int]:
        """Adds to `depths` how many leading blocks each far node seems to have."""
        if self.far and hashes:
            lookup = bloom.FilterLookup(to_array(hashes))
            for origin, far in self.far.items():
                depth = lookup.depth(far.bits, far.summary.probes)
                if depth and origin not in depths:
                    depths[origin] = depth
        return depths

    def _keep(self, now: float, origin: NodeId, summary: Filter) -> None:
        known = self.far.get(origin)
        at = (summary.epoch, summary.version)
        if known is not None and at < (known.summary.epoch, known.summary.version):
            return
        taken = sum(len(far.bits) for far in self.far.values()) - (len(known.bits) if known else 0)
        if len(self.far) - (known is not None) >= MAX_FAR_SETS or taken + len(summary.bits) > MAX_FAR_BYTES:
            return
        self.far[origin] = FarSet(summary, np.frombuffer(summary.bits, dtype=np.uint8), now)

    def _relay(self, link: Link, origin: NodeId, summary: Filter) -> None:
        """The key's certificate goes along the first time only."""
        if link.peer == origin or link.slow:
            return
        if origin in link.keys_told and summary.gossip_key == link.keys_told[origin]:
            relayed = replace(summary, origin=origin, gossip_key=b"", gossip_key_certificate=b"")
        else:
            if len(link.keys_told) >= MAX_FAR_SETS:
                link.keys_told.clear()
            link.keys_told[origin] = summary.gossip_key
            relayed = replace(summary, origin=origin)
        self.outbox.send(link.id, relayed)

    def _publish(self, now: float) -> None:
        if not self._active:
            return
        self.timers.at(now + self.timing.filter_s * self.rng.uniform(0.9, 1.1), self._publish)
        self._rounds += 1
        own, last = self.own, self._own
        unchanged = last is not None and (last.epoch, last.version) == (own.epoch, own.version)
        if unchanged and self._rounds % REPEAT_UNCHANGED:
            return
        bits = bloom.build(own.hashes())
        bare = Filter(None, own.epoch, own.version, len(own), bloom.PROBES, bits, self.model)
        self._own = replace(bare, signature=self.signer.sign(filter_payload(self.own_id, bare)))
        for link in self.links.ready():
            if link.follows and not link.slow:
                self.outbox.send(link.id, self._own)
