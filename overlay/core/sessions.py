"""Streams from their opening to their end: Hello, duplicates, Bye, and peers that break the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from overlay.core.dialer import Dialer
from overlay.core.errors import ProtocolError
from overlay.core.events import LinkId, LinkUp
from overlay.core.heads import KeyRing
from overlay.core.limits import MAX_EPOCH, MAX_LINKS, MAX_LINKS_PER_PEER, MAX_MEMBERS
from overlay.core.links import Link, LinkTable
from overlay.core.messages import PROTOCOL_MAJOR, Bye, ByeReason, Hello
from overlay.core.outbox import Outbox
from overlay.core.timers import Timers
from overlay.core.timing import Timing
from overlay.core.types import NodeId
from overlay.core.views import Connected, Disconnected, PeerMisbehaved


@dataclass(slots=True, eq=False)
class Sessions:
    """Opens, accepts and ends streams.

    `hello()` is what this node says first. `ready(now, link)` is called when a stream becomes the one
    that speaks for its peer, and `left(now, peer)` when a peer said that it leaves.
    `down(now, link, last, expected)` is called when a stream has ended, `last` saying that no other
    leads to the peer and `expected` that one side wanted it so.
    """

    own_id: NodeId
    links: LinkTable
    keys: KeyRing
    dialer: Dialer
    timing: Timing
    timers: Timers
    outbox: Outbox
    hello: Callable[[], Hello]
    ready: Callable[[float, Link], None]
    down: Callable[[float, Link, bool, bool], None]
    left: Callable[[float, NodeId], None]
    _banned_until: dict[NodeId, float] = field(default_factory=dict)

    def on_up(self, now: float, event: LinkUp) -> None:
        """A stream is open: says Hello, and expects one in time."""
        is_self = event.peer == self.own_id
        if event.dialled is not None:
            self.dialer.arrived(now, event.dialled, event.peer, is_self=is_self)
        if is_self:
            self.outbox.close(event.link, ByeReason.SELF, "this address leads to the node itself")
            return
        if now < self._banned_until.get(event.peer, now):
            self._refuse(now, event, ByeReason.PROTOCOL, "this peer broke the protocol not long ago")
            return
        if len(self.links) >= MAX_LINKS:
            self._refuse(now, event, ByeReason.OVERLOADED, f"{MAX_LINKS} streams are open")
            return
        siblings = self.links.to(event.peer)
        if len(siblings) >= MAX_LINKS_PER_PEER:
            self.end(now, siblings[0], ByeReason.DUPLICATE)
        link = Link(event.link, event.peer, event.dialled, now)
        self.links.add(link)
        self.outbox.send(link.id, self.hello())
        self.timers.at(now + self.timing.hello_s, lambda at: self._expect_hello(at, link))

    def on_hello(self, now: float, link: Link, hello: Hello) -> None:
        """A peer says who it is, or that something about it changed; ends the stream if it lies."""
        if hello.major != PROTOCOL_MAJOR:
            detail = f"this node speaks version {PROTOCOL_MAJOR} of the protocol, the peer {hello.major}"
            self.end(now, link, ByeReason.VERSION, detail)
        elif hello.node_id != link.peer:
            self.end(now, link, ByeReason.IDENTITY, "the Hello names another node than the certificate")
        elif not self.keys.trust(link.peer, hello.gossip_key, hello.gossip_key_certificate):
            self.end(now, link, ByeReason.IDENTITY, "the gossip key is not certified by the node's key")
        elif not (0 < hello.epoch < MAX_EPOCH and 0 <= hello.incarnation < MAX_EPOCH):
            raise ProtocolError("an epoch or incarnation out of range")
        else:
            self._accept(now, link, hello)

    def _accept(self, now: float, link: Link, hello: Hello) -> None:
        before = self.links.active(link.peer)
        again = link.ready
        link.hello = hello
        link.heard_at = now
        link.follows = hello.model == self.hello().model
        if again:
            self.ready(now, link)
            return
        losers = self.links.settle(link)
        active = self.links.active(link.peer)
        for loser in losers:
            self.end(now, loser, ByeReason.DUPLICATE)
        if before is None:
            self.outbox.emit(Connected(link.peer))
        if active is link:
            self.ready(now, link)

    def on_bye(self, now: float, link: Link, bye: Bye) -> None:
        """A peer ends a stream, and says why."""
        if bye.reason is ByeReason.LEAVING and link.ready:
            self.left(now, link.peer)
        if self.links.get(link.id) is link:
            self.outbox.hang_up(link.id, bye.reason)
            self.on_down(now, link.id, bye.detail or bye.reason.name.lower(), expected=True)
            if bye.reason is ByeReason.OVERLOADED:
                self.dialer.drop(link.peer)

    def on_down(self, now: float, link_id: LinkId, reason: str, *, expected: bool = False) -> None:
        """A stream has ended."""
        link = self.links.get(link_id)
        if link is None:
            return
        was_active = self.links.active(link.peer) is link
        self.links.remove(link)
        other = self.links.active(link.peer)
        last = not self.links.to(link.peer)
        if was_active and other is None:
            self.outbox.emit(Disconnected(link.peer, reason))
        self.down(now, link, was_active and other is None, expected)
        if other is not None and was_active:
            self.ready(now, other)
        if last:
            self.dialer.lost(now, link.peer, now - link.opened_at if link.ready else 0.0)

    def end(self, now: float, link: Link, reason: ByeReason, detail: str = "") -> None:
        """Ends a stream from this side."""
        self.outbox.close(link.id, reason, detail)
        self.on_down(now, link.id, detail or reason.name.lower(), expected=True)
        if reason is ByeReason.OVERLOADED:
            self.dialer.drop(link.peer)

    def punish(self, now: float, link: Link, violation: str) -> None:
        """A peer broke the protocol: all its streams end, and it may not come back for a while."""
        self._banned_until.pop(link.peer, None)
        if len(self._banned_until) >= MAX_MEMBERS:
            del self._banned_until[next(iter(self._banned_until))]
        self._banned_until[link.peer] = now + self.timing.ban_s
        self.outbox.emit(PeerMisbehaved(link.peer, violation))
        for each in self.links.to(link.peer):
            self.end(now, each, ByeReason.PROTOCOL, violation)

    def _refuse(self, now: float, event: LinkUp, reason: ByeReason, detail: str) -> None:
        self.outbox.close(event.link, reason, detail)
        if not self.links.to(event.peer):
            self.dialer.lost(now, event.peer, 0.0)

    def _expect_hello(self, now: float, link: Link) -> None:
        if self.links.get(link.id) is link and not link.ready:
            self.end(now, link, ByeReason.PROTOCOL, "no Hello in time")
