"""This node's own set on its way to the others: versions, signed heads, deltas, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlay.core.bulk import BulkSender
from overlay.core.digest import Digester, in_ranges, range_of
from overlay.core.heads import sign_head
from overlay.core.limits import MAX_HASHES_PER_FRAME
from overlay.core.links import Link, LinkTable
from overlay.core.messages import Delta, Hashes, Head, Heads, RangeDigests, RangeHashes, RangeWant, Want
from overlay.core.options import Signer
from overlay.core.outbox import Outbox
from overlay.core.own_set import Change, OwnSet
from overlay.core.timers import Timers
from overlay.core.timing import Timing
from overlay.core.types import BlockHash, Epoch, NodeId


@dataclass(slots=True, eq=False)
class Publisher:
    """Tells every follower what this node has cached, and serves those that lag."""

    own_id: NodeId
    own: OwnSet
    digester: Digester
    signer: Signer
    links: LinkTable
    bulk: BulkSender
    timing: Timing
    timers: Timers
    outbox: Outbox
    _head: Head | None = None
    _flush_planned: bool = False

    def local(self, now: float, stored: Sequence[BlockHash], removed: Sequence[BlockHash]) -> None:
        """The engine's cache changed; followers hear of it with the next flush."""
        if self.own.update(stored, removed):
            self._plan_flush(now)

    def restart(self, now: float, epoch: Epoch, *, empty: bool) -> None:
        """A new epoch, told at once so that nobody believes the old one."""
        self.own.restart(epoch, empty=empty)
        for link in self.links.ready():
            if link.follows:
                self.send_head(now, link)
        if not empty:
            self._plan_flush(now)

    def beat(self, now: float) -> None:
        """Once a round: the head goes to those that haven't seen it, or not for long."""
        present = (self.own.epoch, self.own.version)
        for link in self.links.ready():
            old = link.head_sent != present or now - link.head_sent_at >= self.timing.head_refresh_s
            if link.follows and (old or link.head_sends <= self.timing.head_repeats):
                self.send_head(now, link)

    def head(self) -> Head:
        """The signed head of the present version."""
        head, own = self._head, self.own
        if head is None or (head.epoch, head.version, head.floor) != (own.epoch, own.version, own.floor):
            self._head = head = sign_head(self.own_id, own, self.signer)
        return head

    def send_head(self, now: float, link: Link) -> None:
        head = self.head()
        version = (head.epoch, head.version)
        link.head_sends = link.head_sends + 1 if link.head_sent == version else 1
        link.head_sent, link.head_sent_at = version, now
        self.outbox.send(link.id, Heads((head,)))

    def serve(self, now: float, link: Link, want: Want) -> None:
        """What changed since the wanted version, or the whole set where the log doesn't reach."""
        own = self.own
        change = own.since(want.version) if want.epoch == own.epoch else None
        if change is not None and len(change) <= MAX_HASHES_PER_FRAME:
            self.outbox.send(link.id, self._delta(change))
        elif not self.bulk.busy(link, None):
            self.bulk.snapshot(now, link, None, own.epoch, own.version, own.hashes())

    def on_range_want(self, now: float, link: Link, want: RangeWant) -> None:
        """Helps a follower whose set differs at the same version; at another, the head says so."""
        own = self.own
        if (want.epoch, want.version) != (own.epoch, own.version):
            self.send_head(now, link)
            return
        hashes = own.hashes()
        if not want.ranges:
            digests = self.digester.ranges(hashes)
            self.outbox.send(link.id, RangeDigests(None, own.epoch, own.version, digests))
            return
        for ranges, part in _group(bytes(sorted(set(want.ranges))), hashes):
            self.outbox.send(link.id, RangeHashes(None, own.epoch, own.version, ranges, part))

    def _plan_flush(self, now: float) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self.timers.at(now + self.timing.flush_s, self._flush)

    def _flush(self, now: float) -> None:
        self._flush_planned = False
        change = self.own.commit()
        if change is None:
            return
        delta = self._delta(change)
        for link in self.links.ready():
            if not link.follows or link.slow or self.bulk.busy(link, None):
                continue
            if len(change) <= MAX_HASHES_PER_FRAME:
                self.outbox.send(link.id, delta)
            else:
                self.send_head(now, link)

    def _delta(self, change: Change) -> Delta:
        span = (change.version_from, change.version_to)
        return Delta(None, self.own.epoch, *span, change.added, change.removed)


def _group(ranges: bytes, hashes: Hashes) -> list[tuple[bytes, Hashes]]:
    """Splits `ranges` so that the hashes of each part fit one frame."""
    of = range_of(hashes)
    parts: list[tuple[bytes, Hashes]] = []
    start, size = 0, 0
    sizes = [int((of == which).sum()) for which in ranges]
    for end, more in enumerate(sizes):
        if size + more > MAX_HASHES_PER_FRAME and end > start:
            parts.append((ranges[start:end], hashes[in_ranges(hashes, ranges[start:end])]))
            start, size = end, 0
        size += more
    parts.append((ranges[start:], hashes[in_ranges(hashes, ranges[start:])]))
    return parts
