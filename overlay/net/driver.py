"""Feeds the core on one event loop: streams, timers and dials in, actions out."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from overlay.core import actions, events
from overlay.core.core import Core
from overlay.core.events import LinkId
from overlay.core.messages import Message
from overlay.core.priority import priority_of
from overlay.core.types import NodeId
from overlay.core.views import Notification
from overlay.net.clocks import Clocks
from overlay.net.codec import decode, encode, frame_kind
from overlay.net.errors import DialError, MalformedFrameError, SelfDialError, StreamLostError
from overlay.net.hash_domain import HashDomain
from overlay.net.link import Link
from overlay.net.store import Store
from overlay.net.tasks import TaskGroup
from overlay.net.transport import Frames, Stream, Transport
from rumormill.v1 import overlay_pb2 as pb

log = logging.getLogger(__name__)

LAG_PERIOD_S = 0.1
"""How often the loop's lateness is measured."""

LAG_REPORT_S = 0.05
"""Lateness below this is ordinary scheduling."""

CLOSE_GRACE_S = 2.0
"""Time for a stream that this node ends to write its Bye and for the peer to hang up."""


class Driver:
    """One core, its links and its timer. Everything runs on the loop that called `start`."""

    def __init__(
        self,
        core: Core,
        node_id: NodeId,
        transport: Transport,
        store: Store,
        domain: HashDomain,
        notify: Callable[[Notification], None],
    ) -> None:
        self.core = core
        self.gossip_bytes: Counter[tuple[str, str]] = Counter()
        self._node_id = node_id
        self._transport = transport
        self._store = store
        self._domain = domain
        self._notify = notify
        self._clocks = Clocks()
        self._tasks = TaskGroup("overlay")
        self._links: dict[LinkId, Link] = {}
        self._ending: set[Link] = set()
        self._link_ids = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._lag_timer: asyncio.TimerHandle | None = None
        self._lag_due = 0.0
        self._early: list[events.Event] | None = []
        self._encoded: tuple[Message | None, pb.Frame] = (None, pb.Frame())

    @property
    def is_running(self) -> bool:
        return self._early is None

    def start(self) -> None:
        """Hands in Started, then what happened before it."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._lag_due = loop.time() + LAG_PERIOD_S
        self._lag_timer = loop.call_at(self._lag_due, self._measure_lag)
        early, self._early = self._early or [], None
        for event in (events.Started(), *early):
            self.handle(event)

    def handle(self, event: events.Event) -> None:
        """Hands an event to the core, and does what it asks."""
        if self._early is not None:
            self._early.append(event)
            return
        now = self._loop.time()
        # A loop that was held up must say so before it blames others for the silence.
        if now - self._lag_due > LAG_REPORT_S:
            lag_s, self._lag_due = now - self._lag_due, now
            self._perform(self.core.handle(now, events.LoopLag(lag_s)))
        self._perform(self.core.handle(now, event))

    def accept(self, stream: Stream) -> Frames:
        """Takes a stream that a peer opened; returns what this end sends."""
        link = self._make_link()
        self._attach(link, stream)
        self.handle(events.LinkUp(link.id, stream.peer))
        return link.outgoing()

    def streams(self, peer: NodeId) -> list[Stream]:
        """The open streams to a peer."""
        return [link.stream for link in self._links.values() if link.stream and link.stream.peer == peer]

    def drop_where(self, refusal: Callable[[Stream], str | None]) -> list[NodeId]:
        """Ends every stream that `refusal` gives a reason for; returns whose they were."""
        dropped = []
        for link in list(self._links.values()):
            reason = refusal(link.stream) if link.stream is not None else None
            if link.stream is not None and reason is not None:
                dropped.append(link.stream.peer)
                self._drop(link, reason)
        return dropped

    async def stop(self) -> None:
        """Says Bye on every link, waits for them to end, and leaves no task behind."""
        if self.is_running:
            self.handle(events.Leave())
            # The core is done with the links, but some may still be writing their Bye.
            readers = [link.reader for link in (*self._ending, *self._links.values()) if link.reader]
            if readers:
                await asyncio.wait(readers, timeout=CLOSE_GRACE_S / 2)
        for timer in (self._timer, self._lag_timer):
            if timer is not None:
                timer.cancel()
        for link in (*self._ending, *self._links.values()):
            self._cut(link)
        await self._tasks.close()

    # -- actions ------------------------------------------------------------------------------------

    def _perform(self, asked: list[actions.Action]) -> None:
        for action in asked:
            self._perform_one(action)

    def _perform_one(self, action: actions.Action) -> None:
        if isinstance(action, actions.Send):
            self._send(action)
        elif isinstance(action, actions.SetTimer):
            self._set_timer(action.at)
        elif isinstance(action, actions.Dial):
            self._spawn(self._dial(action))
        elif isinstance(action, actions.Close):
            self._close(action.link)
        elif isinstance(action, actions.Persist):
            self._store.save(action.key, action.value)
        else:
            self._notify(action.notification)

    def _send(self, action: actions.Send) -> None:
        link = self._links.get(action.link)
        if link is None:
            return
        if action.message is not self._encoded[0]:  # what goes to many is encoded once
            frame = self._clocks.stamp(encode(self._domain.outgoing(action.message)))
            self._encoded = (action.message, frame)
        link.send(self._encoded[1], priority_of(action.message))
        if link.is_overfull:
            self._loop.call_soon(self._drop, link, "it doesn't read what it is sent")

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.handle(events.TimerFired())

    def _close(self, link_id: LinkId) -> None:
        link = self._links.pop(link_id, None)
        if link is None:
            return
        link.end()
        if link.reader is not None and not link.reader.done():
            self._ending.add(link)
            timer = self._loop.call_later(CLOSE_GRACE_S, self._cut, link)
            link.reader.add_done_callback(lambda _: timer.cancel())

    def _drop(self, link: Link, reason: str) -> None:
        """Ends a link from below: the core hears of it."""
        if self._links.pop(link.id, None) is not None:
            self.handle(events.LinkDown(link.id, reason))
        self._cut(link)

    def _cut(self, link: Link) -> None:
        link.end()
        if link.reader is not None:
            link.reader.cancel()
        if link.stream is not None:
            link.stream.abort()

    async def _dial(self, action: actions.Dial) -> None:
        link = self._make_link()
        try:
            stream = await self._transport.dial(action.address, action.node_id, link.outgoing())
        except SelfDialError:
            self._links[link.id] = link
            self.handle(events.LinkUp(link.id, self._node_id, action.address))
            return
        except DialError as error:
            self.handle(events.DialFailed(action.address, action.node_id, str(error)))
            return
        self._attach(link, stream)
        self.handle(events.LinkUp(link.id, stream.peer, action.address))

    # -- streams ------------------------------------------------------------------------------------

    def _make_link(self) -> Link:
        return Link(LinkId(next(self._link_ids)), self._queue_changed, self._count_sent)

    def _attach(self, link: Link, stream: Stream) -> None:
        link.stream = stream
        self._links[link.id] = link
        link.reader = self._spawn(self._read(link, stream))
        link.reader.add_done_callback(lambda _: self._ending.discard(link))

    async def _read(self, link: Link, stream: Stream) -> None:
        reason = "the peer ended the stream"
        try:
            async for frame in stream.frames():
                self._receive(link, frame)
        except MalformedFrameError as error:
            self.handle(events.MalformedFrame(link.id, str(error)))
        except StreamLostError as error:
            reason = str(error)
        finally:
            link.end()
            if self._links.pop(link.id, None) is not None:
                self.handle(events.LinkDown(link.id, reason))

    def _receive(self, link: Link, frame: pb.Frame) -> None:
        if link.id not in self._links:
            return  # this node has said Bye; what still comes is too late
        size = frame.ByteSize()
        self.gossip_bytes["received", frame_kind(frame)] += size
        try:
            message = decode(frame)
        except MalformedFrameError as error:
            self.handle(events.MalformedFrame(link.id, str(error)))
            return
        if message is not None:
            if link.stream is not None:
                self._clocks.hear(link.stream.peer, frame)
            self.handle(events.MessageReceived(link.id, self._domain.incoming(message), size))

    def _queue_changed(self, link: Link) -> None:
        # Not from within an action of the core that is still being performed.
        self._loop.call_soon(self._report_queue, link)

    def _report_queue(self, link: Link) -> None:
        if link.id in self._links:
            self.handle(events.SendQueue(link.id, link.bytes_waiting))

    def _count_sent(self, frame: pb.Frame, size: int) -> None:
        self.gossip_bytes["sent", frame_kind(frame)] += size

    # -- the loop -----------------------------------------------------------------------------------

    def _measure_lag(self) -> None:
        now = self._loop.time()
        lag_s = now - self._lag_due
        self._lag_due = now + LAG_PERIOD_S
        self._lag_timer = self._loop.call_at(self._lag_due, self._measure_lag)
        if lag_s > LAG_REPORT_S:
            self._perform(self.core.handle(now, events.LoopLag(lag_s)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.spawn(work)
