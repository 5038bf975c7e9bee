"""The others' sets as held here: every replica comes to equal its origin's set.

Each set has one writer, so a version log is the difference and nothing needs reconciling. Rules for a
change (from, to] of an epoch:

    epoch below the replica's      drop: it is from before a restart
    epoch above the replica's      clear, start over at version 0 of it
    to <= version                  drop: known
    from <= version < to           apply: net changes of a longer span end in the same set
    version < from                 ask for what is missing

What comes on the origin's own stream is authenticated by TLS. What anyone else passes on must end in
exactly the digest of a head that the origin signed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from overlay.core.bulk import BulkSender
from overlay.core.changes import Change
from overlay.core.digest import Digester, in_ranges
from overlay.core.errors import ProtocolError
from overlay.core.heads import KeyRing, digest_of
from overlay.core.limits import MAX_EPOCH, MAX_SNAPSHOT_CHUNKS
from overlay.core.links import Link, LinkTable
from overlay.core.messages import (
    Delta,
    Hashes,
    Head,
    Heads,
    RangeDigests,
    RangeHashes,
    RangeWant,
    Snapshot,
    Want,
)
from overlay.core.outbox import Outbox
from overlay.core.prefix_index import BYTES_PER_BLOCK, BYTES_PER_CLAIM, PrefixIndex
from overlay.core.replica import Replica
from overlay.core.timers import Timers
from overlay.core.timing import Timing
from overlay.core.types import Epoch, NodeId, Version

SHED_S = 60.0
"""A set that didn't fit the index is left out this long."""

MAX_REPAIRS = 3
"""Repairs by ranges in a row, before the whole set is fetched again."""

MAX_OWED = 64
"""Relayed sets promised per link until a signed head catches up with them."""

UNREACHABLE_ASKED_PER_BEAT = 8
"""Sets of vanished members asked for in one round: a Want weighs 10 of the 300 frames a peer may send in a
second, and all of these may go to one peer."""


@dataclass(slots=True, eq=False)
class Follower:
    """Replicas of the sets of peers that run the same model.

    `followed(peer)` says whether a peer without a stream is a member whose set matters here.
    """

    own_id: NodeId
    index: PrefixIndex
    index_bytes: int
    digester: Digester
    keys: KeyRing
    links: LinkTable
    bulk: BulkSender
    timing: Timing
    timers: Timers
    outbox: Outbox
    rng: random.Random
    followed: Callable[[NodeId], bool]
    replicas: dict[NodeId, Replica] = field(default_factory=dict)
    _shed_until: dict[NodeId, float] = field(default_factory=dict)
    _owed: dict[tuple[Link, NodeId], Want] = field(default_factory=dict)
    _turn: int = 0

    # -- links and members ------------------------------------------------------------------------

    def connected(self, link: Link) -> None:
        """A peer's stream is ready: it hears what is remembered of itself, should it have forgotten."""
        replica = self.replicas.get(link.peer)
        if not link.follows or replica is None or link.hello is None:
            return
        if replica.head is not None:
            self._relay_head(link, replica.origin, replica.head)
        elif link.hello.epoch < replica.epoch:
            self.retire(link.peer)
            del self.replicas[link.peer]

    def disconnected(self, link: Link) -> None:
        self._owed = {key: want for key, want in self._owed.items() if key[0] is not link}

    def beat(self, now: float, unreachable: Iterable[NodeId]) -> None:
        """Once a round: asks again for what didn't come, and for the sets of the unreachable.

        `unreachable` are followed members without a stream; any peer may serve their sets. When many
        vanish at once they are asked for in turn, so that no peer takes this node for a flooder.
        """
        for replica in self.replicas.values():
            if replica.lags:
                self._ask(now, replica)
        origins = sorted(unreachable)
        for step in range(min(len(origins), UNREACHABLE_ASKED_PER_BEAT)):
            self._ask(now, self._replica(origins[(self._turn + step) % len(origins)]))
        self._turn += UNREACHABLE_ASKED_PER_BEAT

    def retire(self, node_id: NodeId) -> None:
        """A member is gone: its blocks leave the index, its epoch is remembered."""
        replica = self.replicas.get(node_id)
        if replica is not None:
            replica.retire()

    def forget(self, node_id: NodeId) -> None:
        """A peer is forgotten altogether."""
        self.retire(node_id)
        self.replicas.pop(node_id, None)
        self._shed_until.pop(node_id, None)
        self.keys.forget(node_id)

    # -- heads ------------------------------------------------------------------------------------

    def on_head(self, now: float, link: Link, head: Head) -> None:
        """Learns what an origin has; raises ProtocolError when its own stream brings a bad signature.

        A relay that passes on what can't be verified here is only not believed.
        """
        origin = head.origin or link.peer
        if not self._follows(link, origin):
            return
        replica = self._replica(origin)
        replica.retired = False
        known = replica.head
        verified = known if _is_same(known, head) else self.keys.verified(origin, head)
        if verified is None:
            if origin == link.peer:
                raise ProtocolError("a head without a valid signature")
            return
        if known is None or (head.epoch, head.version) >= (known.epoch, known.version):
            replica.head = verified
        if origin == link.peer and replica.head is not verified and replica.head is not None:
            self._relay_head(link, origin, replica.head)
        if head.epoch > replica.epoch:
            replica.restart(head.epoch)
        if replica.behind(head.epoch, head.version):
            self._ask(now, replica, link)
        elif (head.epoch, head.version) == (replica.epoch, replica.version):
            self._compare(now, link, replica, head)

    def _compare(self, now: float, link: Link, replica: Replica, head: Head) -> None:
        """At equal versions, equal digests prove equal sets; anything else is repaired."""
        if digest_of(head) == replica.digest:
            replica.current_at = now
            replica.repairs = 0
            self._pay(now, replica)
            return
        replica.repairs += 1
        if replica.origin == link.peer and replica.repairs <= MAX_REPAIRS:
            self.outbox.send(link.id, RangeWant(replica.origin, replica.epoch, replica.version, b""))
        else:
            replica.refetch = True
            self._ask(now, replica, link)

    # -- asking and relaying ----------------------------------------------------------------------

    def _ask(self, now: float, replica: Replica, link: Link | None = None) -> None:
        """Wants what is missing: from the origin, or from whoever told, or from anyone."""
        if replica.wanted_at is not None and now - replica.wanted_at < 0.99 * self.timing.want_retry_s:
            return
        if not self._has_room(now, replica, 0):
            return
        direct = self.links.active(replica.origin)
        if direct is not None:
            link = direct
        elif link is None:
            peers = self.links.connected()
            link = self.links.active(self.rng.choice(peers)) if peers else None
        if link is None:
            return
        replica.wanted_at = now
        self.timers.at(now + self.timing.want_retry_s, lambda at: self._ask_again(at, replica))
        at = (Epoch(0), Version(0)) if replica.refetch else (replica.epoch, replica.version)
        self.outbox.send(link.id, Want(replica.origin, *at))

    def _ask_again(self, now: float, replica: Replica) -> None:
        """Still behind what a head promised: the Want, or its answer, was lost."""
        if replica.lags:
            self._ask(now, replica)

    def on_want(self, now: float, link: Link, want: Want) -> None:
        """Serves someone else's set as a relay, now or once a signed head proves it."""
        replica = self.replicas.get(want.origin or link.peer)
        if replica is None or (want.epoch, want.version) >= (replica.epoch, replica.version):
            return
        if not self._relay(now, link, replica, want) and len(self._owed) < MAX_OWED * len(self.links):
            self._owed[link, replica.origin] = want

    def _relay(self, now: float, link: Link, replica: Replica, want: Want) -> bool:
        """Passes on what changed since, where that is remembered, or the whole set, after the head."""
        head = replica.head
        if head is None or (head.epoch, head.version) != (replica.epoch, replica.version):
            return False
        if digest_of(head) != replica.digest:
            return False
        if self.bulk.busy(link, replica.origin):
            return True
        self._relay_head(link, replica.origin, head)
        change = replica.since(want.epoch, want.version)
        if change is not None and not link.slow:
            self.outbox.send(link.id, change.delta(replica.origin, replica.epoch))
        else:
            self.bulk.snapshot(now, link, replica.origin, replica.epoch, replica.version, replica.hashes())
        return True

    def _relay_head(self, link: Link, origin: NodeId, head: Head) -> None:
        self.outbox.send(link.id, Heads((replace(head, origin=origin),)))

    def _pay(self, now: float, replica: Replica) -> None:
        for (link, origin), want in list(self._owed.items()):
            if origin == replica.origin and self._relay(now, link, replica, want):
                del self._owed[link, origin]

    # -- changes and snapshots --------------------------------------------------------------------

    def on_delta(self, now: float, link: Link, delta: Delta) -> None:
        """Applies net changes by the rules above; raises ProtocolError for impossible ones."""
        origin = delta.origin or link.peer
        if not 0 < delta.epoch < MAX_EPOCH or delta.version_from > delta.version_to:
            raise ProtocolError("a delta of an impossible span")
        if not self._follows(link, origin):
            return
        replica = self._replica(origin)
        direct = origin == link.peer
        if not self._has_room(now, replica, len(delta.added)):
            return
        if delta.epoch > replica.epoch and direct:
            replica.restart(delta.epoch)
        if delta.epoch != replica.epoch or delta.version_to <= replica.version:
            return
        if delta.version_from > replica.version or replica.refetch:
            if not replica.staging:
                self._ask(now, replica, link)
            return
        change = Change.of(delta)
        if not direct and not self._proven_delta(replica, change):
            return
        replica.apply(change)
        self._moved_on(now, link, replica)

    def on_snapshot(self, now: float, link: Link, part: Snapshot) -> None:
        """Stages one part of a set; swaps the whole in at once when the last has come."""
        origin = part.origin or link.peer
        if not 0 < part.epoch < MAX_EPOCH or not 0 <= part.chunk < part.chunks <= MAX_SNAPSHOT_CHUNKS:
            raise ProtocolError(f"an impossible snapshot chunk, {part.chunk} of {part.chunks}")
        if not self._follows(link, origin):
            return
        replica = self._replica(origin)
        at = (part.epoch, part.version)
        if not replica.behind(*at) and not (replica.refetch and at == (replica.epoch, replica.version)):
            return
        so_far = replica.staged + len(part.hashes)
        if origin != link.peer and not self._is_promised(replica, part, so_far):
            return
        if not self._has_room(now, replica, so_far):
            return
        replica.wanted_at = now
        whole = replica.stage(part)
        if whole is None or (origin != link.peer and not self._proven_snapshot(replica, whole)):
            return
        replica.swap(part.epoch, part.version, whole)
        self._moved_on(now, link, replica)

    def _proven_delta(self, replica: Replica, change: Change) -> bool:
        head = replica.head
        if head is None or (head.epoch, head.version) != (replica.epoch, change.version_to):
            return False
        return replica.after(change) == digest_of(head)

    def _is_promised(self, replica: Replica, part: Snapshot, hashes: int) -> bool:
        """Whether the origin signed a head of a set as large as what came so far."""
        head = replica.head
        if head is None or (head.epoch, head.version) != (part.epoch, part.version):
            return False
        return hashes <= head.count

    def _proven_snapshot(self, replica: Replica, whole: Hashes) -> bool:
        head = replica.head
        return head is not None and self.digester.digest(whole) == digest_of(head)

    def _moved_on(self, now: float, link: Link, replica: Replica) -> None:
        replica.wanted_at = None
        replica.current_at = now
        head = replica.head
        if head is not None and (head.epoch, head.version) == (replica.epoch, replica.version):
            self._compare(now, link, replica, head)

    # -- repair -----------------------------------------------------------------------------------

    def on_range_digests(self, link: Link, message: RangeDigests) -> None:
        """Finds which ranges differ from the origin's, and asks for just those."""
        replica = self._repairable(link, message)
        if replica is not None:
            differ = (self.digester.ranges(replica.hashes()) != message.digests).any(axis=1)
            ranges = bytes(differ.nonzero()[0].tolist())
            if ranges:
                self.outbox.send(link.id, RangeWant(replica.origin, replica.epoch, replica.version, ranges))

    def on_range_hashes(self, now: float, link: Link, message: RangeHashes) -> None:
        """Takes the origin's word for some ranges."""
        if not in_ranges(message.hashes, message.ranges).all():
            raise ProtocolError("hashes outside of the ranges they came for")
        replica = self._repairable(link, message)
        if replica is not None and self._has_room(now, replica, len(message.hashes)):
            replica.replace_ranges(message.ranges, message.hashes)
            head = replica.head
            if head is not None and digest_of(head) == replica.digest:
                self._moved_on(now, link, replica)

    def _repairable(self, link: Link, message: RangeDigests | RangeHashes) -> Replica | None:
        origin = message.origin or link.peer
        replica = self.replicas.get(origin)
        if origin != link.peer or replica is None:
            return None
        return replica if (message.epoch, message.version) == (replica.epoch, replica.version) else None

    # -- bounds -----------------------------------------------------------------------------------

    def _follows(self, link: Link, origin: NodeId) -> bool:
        if origin == self.own_id:
            return False
        return link.follows if origin == link.peer else self.followed(origin)

    def _replica(self, origin: NodeId) -> Replica:
        replica = self.replicas.get(origin)
        if replica is None:
            self.replicas[origin] = replica = Replica(origin, self.index, self.digester)
        return replica

    def _has_room(self, now: float, replica: Replica, incoming: int) -> bool:
        """Keeps the index under its budget: whoever claims most is left out first."""
        if now < self._shed_until.get(replica.origin, 0.0):
            return False
        staged = sum(other.staged for other in self.replicas.values())
        need = incoming * (BYTES_PER_BLOCK + BYTES_PER_CLAIM) + staged * BYTES_PER_CLAIM
        while self.index.bytes + need > self.index_bytes:
            largest = max(self.replicas.values(), key=lambda other: other.digest.count)
            if replica.digest.count + incoming >= largest.digest.count:
                largest = replica
            largest.retire()
            self._shed_until[largest.origin] = now + SHED_S
            if largest is replica:
                return False
        return True


def _is_same(known: Head | None, head: Head) -> bool:
    """Whether a head is one that was verified before: heads are repeated."""
    return (
        known is not None
        and known.signature == head.signature
        and (known.epoch, known.version, known.floor) == (head.epoch, head.version, head.floor)
        and digest_of(known) == digest_of(head)
    )
