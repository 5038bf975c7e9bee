"""Snapshots on their way out: behind everything else, paced, one per origin and link."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from overlay.core.events import LinkId
from overlay.core.limits import MAX_HASHES_PER_FRAME
from overlay.core.links import Link, LinkTable
from overlay.core.messages import Hashes, Message, Snapshot
from overlay.core.outbox import Outbox
from overlay.core.timers import Timers
from overlay.core.tokens import TokenBucket
from overlay.core.types import Epoch, NodeId, Version

RATE = 8 << 20
"""Bytes a second and link: a 32,768-block set in 30 ms, without drowning what matters more."""

BURST = 1 << 20
"""Bytes at once: four full chunks."""

PACE_S = 0.05
"""A chunk that must wait is tried again after this."""

MAX_WAITING = 16
"""Snapshots waiting per link; whoever asks for more asks again later."""


@dataclass(slots=True, eq=False)
class _Queue:
    bucket: TokenBucket
    transfers: deque[tuple[NodeId | None, deque[Message]]] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class BulkSender:
    """Sends snapshots chunk by chunk as the link's bucket allows; a slow link waits."""

    links: LinkTable
    timers: Timers
    outbox: Outbox
    _queues: dict[LinkId, _Queue] = field(default_factory=dict)

    def busy(self, link: Link, origin: NodeId | None) -> bool:
        """Whether a snapshot of `origin` (None: this node) is on its way there."""
        queue = self._queues.get(link.id)
        return queue is not None and any(key == origin for key, _ in queue.transfers)

    def snapshot(
        self, now: float, link: Link, origin: NodeId | None, epoch: Epoch, version: Version, hashes: Hashes
    ) -> None:
        """Queues a whole set."""
        chunks = max(1, math.ceil(len(hashes) / MAX_HASHES_PER_FRAME))
        parts = deque[Message]()
        for chunk in range(chunks):
            part = hashes[chunk * MAX_HASHES_PER_FRAME : (chunk + 1) * MAX_HASHES_PER_FRAME]
            parts.append(Snapshot(origin, epoch, version, chunk, chunks, part))
        queue = self._queues.get(link.id)
        if queue is None:
            queue = self._queues[link.id] = _Queue(TokenBucket.full(now, RATE, BURST))
        if len(queue.transfers) >= MAX_WAITING or self.busy(link, origin):
            return
        queue.transfers.append((origin, parts))
        if len(queue.transfers) == 1:
            self._drain(now, link.id)

    def forget(self, link: LinkId) -> None:
        self._queues.pop(link, None)

    def _drain(self, now: float, link_id: LinkId) -> None:
        queue, link = self._queues.get(link_id), self.links.get(link_id)
        if queue is None or link is None:
            return
        while queue.transfers and not link.slow:
            parts = queue.transfers[0][1]
            size = 8 * len(parts[0].hashes) if isinstance(parts[0], Snapshot) else 0
            if not queue.bucket.take(now, size):
                break
            self.outbox.send(link_id, parts.popleft())
            if not parts:
                queue.transfers.popleft()
        if queue.transfers:
            self.timers.at(now + PACE_S, lambda at: self._drain(at, link_id))
