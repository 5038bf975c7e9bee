"""One gossip stream as the driver holds it: a bounded queue of frames on their way out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from overlay.core.core import SLOW_BYTES
from overlay.core.events import LinkId
from overlay.core.priority import Priority
from overlay.net.transport import Frames, Stream
from rumormill.v1 import overlay_pb2 as pb

MAX_QUEUE_BYTES = 8 << 20
"""A peer that lets this much wait isn't reading. The core stops sending it bulk at SLOW_BYTES, so
only a stalled one gets here."""


class Link:
    """Frames wait here until the transport takes them, the most urgent first.

    `on_queue(link)` is called when the queue passes SLOW_BYTES, and when it has drained to a quarter.
    `on_sent(frame, size)` is called for every frame that the transport took.
    """

    def __init__(
        self,
        link_id: LinkId,
        on_queue: Callable[[Link], None],
        on_sent: Callable[[pb.Frame, int], None],
    ) -> None:
        self.id = link_id
        self.stream: Stream | None = None
        self.reader: asyncio.Task[None] | None = None
        self.bytes_waiting = 0
        self._on_queue = on_queue
        self._on_sent = on_sent
        self._queues: tuple[deque[tuple[pb.Frame, int]], ...] = tuple(deque() for _ in Priority)
        self._ready = asyncio.Event()
        self._ending = False
        self._slow = False

    @property
    def is_overfull(self) -> bool:
        return self.bytes_waiting > MAX_QUEUE_BYTES

    def send(self, frame: pb.Frame, priority: Priority) -> None:
        """Queues a frame; after `end` it is dropped."""
        if self._ending:
            return
        size = frame.ByteSize()
        self._queues[priority].append((frame, size))
        self.bytes_waiting += size
        self._ready.set()
        if not self._slow and self.bytes_waiting > SLOW_BYTES:
            self._slow = True
            self._on_queue(self)

    def end(self) -> None:
        """Ends the outgoing direction once what is queued has been written."""
        self._ending = True
        self._ready.set()

    async def outgoing(self) -> Frames:
        """What the transport writes. One consumer."""
        while True:
            while queue := next(filter(None, self._queues), None):
                frame, size = queue.popleft()
                yield frame
                self.bytes_waiting -= size
                self._on_sent(frame, size)
                if self._slow and self.bytes_waiting <= SLOW_BYTES // 4:
                    self._slow = False
                    self._on_queue(self)
            if self._ending:
                return
            self._ready.clear()
            await self._ready.wait()
