"""This node's own set on its way to the others: versions, signed heads, deltas, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlay.core.bulk import BulkSender
from overlay.core.digest import Digester, in_ranges, range_of
from overlay.core.heads import sign_head
from overlay.core.limits import MAX_HASHES_PER_FRAME
from overlay.core.links import Link, LinkTable
from overlay.core.messages import Hashes, Head, Heads, RangeDigests, RangeHashes, RangeWant, Want
from overlay.core.options import Signer
from overlay.core.outbox import Outbox
from overlay.core.own_set import OwnSet
from overlay.core.timers import Timer, Timers
from overlay.core.timing import Timing
from overlay.core.types import BlockHash, Epoch, NodeId

FULL_DELTA = 32
"""So many changes outweigh the 55 bytes of the frame that carries them by five to one."""


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
    _flush_timer: Timer | None = None
    _flushed_at: float = float("-inf")

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
        """Once a round: the head goes to those that haven't seen it, or not for long.

        While changes go on the next delta tells the version, and heads are rare.
        """
        present = (self.own.epoch, self.own.version)
        quiet = not self.own.changing
        for link in self.links.ready():
            untold = link.head_sent != present or link.head_sends <= self.timing.head_repeats
            old = now - link.head_sent_at >= self.timing.head_refresh_s
            if link.follows and (old or (quiet and untold)):
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
            self.outbox.send(link.id, change.delta(None, own.epoch))
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
        due = self._flush_due(now)
        if self._flush_timer is not None:
            if self._flush_timer.at <= due:
                return
            self._flush_timer.cancel()
        self._flush_timer = self.timers.at(due, self._flush)

    def _flush_due(self, now: float) -> float:
        """Soon after a quiet time or when there is enough for a frame of its own; else a little later."""
        timing = self.timing
        if self.own.changing >= FULL_DELTA:
            return max(now, self._flushed_at + timing.flush_s)
        return max(now + timing.flush_s, self._flushed_at + timing.flush_max_s)

    def _flush(self, now: float) -> None:
        self._flush_timer = None
        change = self.own.commit()
        if change is None:
            return
        self._flushed_at = now
        delta = change.delta(None, self.own.epoch)
        for link in self.links.ready():
            if not link.follows or link.slow or self.bulk.busy(link, None):
                continue
            if len(change) <= MAX_HASHES_PER_FRAME:
                self.outbox.send(link.id, delta)
            else:
                self.send_head(now, link)


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
