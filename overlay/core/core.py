"""The overlay of one node, without I/O: events in, actions out; time and randomness are arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from overlay.core import events, messages
from overlay.core.actions import Action
from overlay.core.bulk import BulkSender
from overlay.core.detector import Detector
from overlay.core.dialer import Dialer
from overlay.core.digest import Digester
from overlay.core.errors import ProtocolError
from overlay.core.far_sets import FarSets
from overlay.core.follower import Follower
from overlay.core.heads import KeyRing
from overlay.core.links import Link, LinkTable
from overlay.core.loads import LoadBook
from overlay.core.members import MemberTable, PeerRecord
from overlay.core.membership import Membership
from overlay.core.options import CoreOptions
from overlay.core.outbox import Outbox
from overlay.core.own_set import OwnSet
from overlay.core.prefix_index import PrefixIndex
from overlay.core.publisher import Publisher
from overlay.core.sessions import Sessions
from overlay.core.speculation import Speculation
from overlay.core.stored import load_epoch, load_peers, store_epoch, store_peers
from overlay.core.timers import Timers
from overlay.core.topology import Topology
from overlay.core.types import BlockHash, Epoch, Load, NodeId
from overlay.core.views import PeerState, PeerView

Handler: TypeAlias = Callable[[float, Any], None]

SWEEP_BEATS = 10
"""Rounds between housekeeping of what changes slowly."""

EXCHANGE_BEATS = 30
"""Rounds between exchanges of known members with a random peer, should news have been lost."""


class Core:
    """Membership, anti-entropy and the prefix index of one node.

    `stored` is what earlier runs asked to Persist. `unix_ms` only seeds the epoch, which rises even
    when the clock steps back. `now` is any monotonic clock in seconds and never falls.

        links -- sessions -- dialer          who is connected
        table -- membership -- detector      who lives
        own -- publisher, follower -- index  who has cached what
        loads                                who is busy
    """

    def __init__(
        self, options: CoreOptions, rng: random.Random, unix_ms: int, stored: Mapping[str, bytes]
    ) -> None:
        epoch = Epoch(max(load_epoch(stored) + 1, unix_ms, 1))
        timing, own_id = options.timing, options.node_id
        self.options = options
        self.links = links = LinkTable(own_id)
        self.table = table = MemberTable(own_id)
        self.index = PrefixIndex()
        self._stored = stored
        self._stored_peers = b""
        self._rng = rng
        self._timers = timers = Timers()
        self._outbox = outbox = Outbox()
        self._timer_at: float | None = None
        self._lag_s = timing.lag_s
        self._beats = 0
        self._left = False
        self._speculation = Speculation(timing.forwarded_s)
        keys, digester = KeyRing(options.signer), Digester(options.digest_key)
        bulk = BulkSender(links, timers, outbox)
        self.own = OwnSet(epoch, digester)
        self._bulk, self._keys = bulk, keys
        addresses = set(options.addresses)
        self._dialer = Dialer(addresses, rng, timing, timers, outbox, satisfied=self._needs_no_dial)
        self.membership = Membership(
            own_id, epoch, options.addresses, table, links, timing, timers, outbox, rng,
            found=self._found, gone=self._gone, forgotten=self._forget,
        )  # fmt: skip
        self.loads = LoadBook(Load(epoch, 0), links, timing, timers, outbox)
        self.detector = Detector(
            table, links, timing, timers, outbox, rng,
            alive=self.membership.alive, rtt=self.loads.measured, failed=self.membership.suspect,
        )  # fmt: skip
        self._sessions = Sessions(
            own_id, links, keys, self._dialer, timing, timers, outbox,
            hello=self._hello, ready=self._ready, down=self._down, left=self.membership.left,
        )  # fmt: skip
        self._publisher = Publisher(
            own_id, self.own, digester, options.signer, links, bulk, timing, timers, outbox
        )
        self.follower = Follower(
            own_id, self.index, options.index_bytes, digester, keys, links, bulk, timing, timers,
            outbox, rng, followed=self._is_followed,
        )  # fmt: skip
        self.far = FarSets(
            own_id, self.own, options.model, keys, options.signer, links, timing, timers, outbox, rng,
            known=self._is_known,
        )  # fmt: skip
        self.topology = Topology(table, links, self._dialer, rng, options.full_mesh, options.degree)
        self._event_handlers = self._list_event_handlers()
        self._message_handlers = self._list_message_handlers()

    # -- what the driver calls --------------------------------------------------------------------

    def handle(self, now: float, event: events.Event) -> list[Action]:
        """Takes one event; returns what is to be done about it, in order. The first is Started."""
        if self._left:
            return []
        if self._timer_at is not None and now - self._timer_at > self._lag_s:
            self._lagged(now - self._timer_at)
            self._timer_at = None
            self._timers.changed = True
        self._event_handlers[type(event)](now, event)
        if self._timers.changed:
            self._set_timer()
        return self._outbox.take()

    def match(self, hashes: Sequence[BlockHash]) -> dict[NodeId, int]:
        """How many leading blocks of a prompt each peer is believed to have; peers with none are left out."""
        depths = self.far.match(hashes, self.index.match(hashes))
        return self._speculation.extend(depths, hashes)

    def peers(self, now: float) -> tuple[PeerView, ...]:
        """Every peer known, candidates and the dead included, sorted by id."""
        return tuple(self._view(now, peer) for peer in sorted(self.table, key=lambda peer: peer.node_id))

    def own_load(self) -> Load:
        """This node's load, stamped with its epoch and a sequence that rises with every change."""
        return self.loads.own

    # -- events -----------------------------------------------------------------------------------

    def _list_event_handlers(self) -> dict[type, Handler]:
        return {
            events.Started: self._on_started,
            events.TimerFired: lambda now, _: self._on_timer(now),
            events.LinkUp: self._sessions.on_up,
            events.LinkDown: lambda now, event: self._sessions.on_down(now, event.link, event.reason),
            events.DialFailed: lambda now, event: self._dialer.failed(now, event.address, event.reason),
            events.MessageReceived: self._on_message,
            events.MalformedFrame: self._on_malformed,
            events.SendQueue: self._on_send_queue,
            events.LocalBlocks: lambda now, event: self._publisher.local(now, event.stored, event.removed),
            events.LocalCleared: lambda now, _: self._new_epoch(now, self.own.epoch, empty=True),
            events.LocalLoad: lambda now, event: self.loads.change(now, event.load),
            events.PeerLoad: self._on_peer_load,
            events.Forwarded: lambda now, event: self._speculation.add(now, event.node_id, event.hashes),
            events.AddressHint: self._on_hint,
            events.LoopLag: lambda _, event: self._lagged(event.lag_s),
            events.AddressesChanged: self._on_addresses,
            events.Leave: self._on_leave,
        }

    def _on_started(self, now: float, _: events.Started) -> None:
        self._outbox.persist(*store_epoch(self.own.epoch))
        for address in self.options.seeds:
            self._dialer.seed(now, address, permanent=True)
        for node_id, addresses in load_peers(self._stored).items():
            if node_id != self.options.node_id:
                self.membership.hint(now, node_id, addresses)
        self.loads.keep_fresh(now)
        self._timers.at(now + self.options.timing.heartbeat_s * self._rng.random(), self._beat)

    def _on_timer(self, now: float) -> None:
        self._timer_at = None
        self._timers.run_due(now)

    def _set_timer(self) -> None:
        due = self._timers.next()
        if due is not None and due != self._timer_at and not self._left:
            self._timer_at = due
            self._outbox.set_timer(due)

    def _on_send_queue(self, now: float, event: events.SendQueue) -> None:
        """A slow consumer gets no more deltas; once it has caught up, the latest head makes it ask."""
        link = self.links.get(event.link)
        if link is None:
            return
        slow = event.bytes_waiting > (SLOW_BYTES // 4 if link.slow else SLOW_BYTES)
        caught_up = link.slow and not slow
        link.slow = slow
        if caught_up and link.ready:
            self.loads.report_to(link.id)
            if link.follows:
                self._publisher.send_head(now, link)

    def _on_peer_load(self, now: float, event: events.PeerLoad) -> None:
        peer = self.table.get(event.node_id)
        if peer is not None and peer.present:
            self.loads.heard(now, event.node_id, event.load)

    def _on_hint(self, now: float, event: events.AddressHint) -> None:
        if event.node_id == self.options.node_id:
            return
        if event.node_id is None or event.source is events.HintSource.SEED:
            self._dialer.seed(now, event.address, permanent=event.source is events.HintSource.SEED)
        elif self.table.get(event.node_id) is None:
            self.membership.hint(now, event.node_id, (event.address,))
        else:
            self._dialer.want(now, event.node_id, (event.address,))

    def _on_addresses(self, now: float, event: events.AddressesChanged) -> None:
        self.membership.addresses = event.addresses
        self._dialer.own_addresses = set(event.addresses)
        self.membership.announce(now)
        for link in self.links.ready():
            self._outbox.send(link.id, self._hello())

    def _on_leave(self, now: float, _: events.Leave) -> None:
        self._store_peers()
        for link in self.links.all():
            self._outbox.close(link.id, messages.ByeReason.LEAVING)
        self._left = True

    def _lagged(self, lag_s: float) -> None:
        """Whoever seemed silent may only have waited for this node's own event loop."""
        if lag_s > self._lag_s:
            self.detector.lagged(lag_s)
            self.membership.forgive(lag_s)

    # -- frames -----------------------------------------------------------------------------------

    def _list_message_handlers(self) -> dict[type, Callable[[float, Link, Any], None]]:
        detector, follower = self.detector, self.follower
        return {
            messages.Hello: self._sessions.on_hello,
            messages.Bye: self._sessions.on_bye,
            messages.Members: self.membership.on_members,
            messages.Heads: self._on_heads,
            messages.Want: self._on_want,
            messages.Delta: follower.on_delta,
            messages.Snapshot: follower.on_snapshot,
            messages.RangeDigests: lambda _, link, message: follower.on_range_digests(link, message),
            messages.RangeWant: self._on_range_want,
            messages.RangeHashes: follower.on_range_hashes,
            messages.Filter: self.far.on_filter,
            messages.LoadReport: self._on_load_report,
            messages.Probe: lambda _, link, message: detector.on_probe(
                link, message, self.membership.incarnation
            ),
            messages.ProbeRequest: detector.on_probe_request,
            messages.Ack: detector.on_ack,
            messages.Nack: lambda _, link, message: detector.on_nack(link, message),
        }

    def _on_message(self, now: float, event: events.MessageReceived) -> None:
        link = self.links.get(event.link)
        if link is None:
            return
        link.heard_at = now
        message = event.message
        try:
            link.inbox.charge(now, message, event.size)
            if link.hello is None and not isinstance(message, (messages.Hello, messages.Bye)):
                raise ProtocolError(f"a {type(message).__name__} before the Hello")
            self._message_handlers[type(message)](now, link, message)
        except ProtocolError as violation:
            self._sessions.punish(now, link, str(violation))

    def _on_malformed(self, now: float, event: events.MalformedFrame) -> None:
        link = self.links.get(event.link)
        if link is not None:
            self._sessions.punish(now, link, event.detail)

    def _on_heads(self, now: float, link: Link, message: messages.Heads) -> None:
        for head in message.heads:
            if head.origin != self.options.node_id:
                self.follower.on_head(now, link, head)
            elif self._is_outdated(head) and self._keys.verified(self.options.node_id, head):
                self._new_epoch(now, head.epoch, empty=False)

    def _is_outdated(self, remembered: messages.Head) -> bool:
        """Whether the mesh remembers more of this node than the node itself, which lost its disk."""
        return (remembered.epoch, remembered.version) > (self.own.epoch, self.own.version)

    def _on_want(self, now: float, link: Link, message: messages.Want) -> None:
        if message.origin == self.options.node_id:
            self._publisher.serve(now, link, message)
        else:
            self.follower.on_want(now, link, message)

    def _on_range_want(self, now: float, link: Link, message: messages.RangeWant) -> None:
        if message.origin == self.options.node_id:
            self._publisher.on_range_want(now, link, message)

    def _on_load_report(self, now: float, link: Link, message: messages.LoadReport) -> None:
        if message.origin in (None, link.peer):
            self.loads.heard(now, link.peer, message.load)

    # -- what the parts tell ----------------------------------------------------------------------

    def _hello(self) -> messages.Hello:
        options = self.options
        return messages.Hello(
            messages.PROTOCOL_MAJOR,
            messages.PROTOCOL_MINOR,
            options.node_id,
            self.own.epoch,
            self.membership.incarnation,
            self.membership.addresses,
            options.model,
            options.model_name,
            options.http_url,
            options.signer.gossip_key,
            options.signer.certificate,
        )

    def _ready(self, now: float, link: Link) -> None:
        """A stream speaks for its peer from now on: everything that matters is said at once."""
        if link.hello is None:
            return
        known = self.table.get(link.peer)
        if known is not None and known.gone:
            self._hurry(now)
        self.membership.met(now, link.hello)
        self._dialer.want(now, link.peer, link.hello.addresses)
        self.membership.greet(link)
        self.loads.report_to(link.id)
        if link.follows:
            self._publisher.send_head(now, link)
            self.follower.connected(link)
            self.far.connected(link)
        self.detector.ping(now, link)

    def _hurry(self, now: float) -> None:
        """Whoever returns from the dead is seldom alone: a split has healed."""
        for peer in self.table:
            if not self._is_connected(peer.node_id):
                self._dialer.hurry(now, peer.node_id)

    def _down(self, now: float, link: Link, last: bool, expected: bool) -> None:
        """A stream has ended; in a large mesh, what only a neighbour knows of a peer goes with it."""
        self._bulk.forget(link.id)
        self.follower.disconnected(link)
        peer = self.table.get(link.peer)
        if not last or peer is None:
            return
        self.far.disconnected(link.peer)
        if self.topology.bounded:
            self.follower.retire(link.peer)
            self.loads.forget(link.peer)
        if not expected:
            self.topology.reclaim(link.peer)
        if peer.present and not (expected and self.topology.bounded):
            self.detector.probe(now, link.peer)

    def _found(self, now: float, peer: PeerRecord) -> None:
        """Both sides learn of each other at about the same time: the lower id dials first."""
        if not self.topology.wants(peer):
            return
        first = self.options.node_id < peer.node_id
        delay = 0.0 if first else self._rng.uniform(2.0, 4.0) * self.options.timing.dial_first_s
        delay += self._rng.random() * self.topology.patience_s()
        self._dialer.want(now, peer.node_id, peer.addresses, delay)

    def _gone(self, now: float, peer: PeerRecord) -> None:
        self.follower.retire(peer.node_id)
        self._speculation.forget(peer.node_id)
        self.far.forget(peer.node_id)
        self.loads.forget(peer.node_id)
        for link in self.links.to(peer.node_id):
            self._sessions.end(now, link, messages.ByeReason.UNSPECIFIED, f"believed {peer.state.value}")
        if peer.state is not PeerState.DEAD:
            self._dialer.drop(peer.node_id)

    def _forget(self, node_id: NodeId) -> None:
        self._dialer.drop(node_id)
        self.follower.forget(node_id)
        self.loads.forget(node_id)
        self.far.forget(node_id)

    def _new_epoch(self, now: float, above: Epoch, *, empty: bool) -> None:
        """The set starts over: its cache was cleared, or the mesh remembers more than this node does."""
        epoch = Epoch(above + 1)
        self._outbox.persist(*store_epoch(epoch))
        self.loads.restart(epoch)
        self._publisher.restart(now, epoch, empty=empty)

    # -- once a round -----------------------------------------------------------------------------

    def _beat(self, now: float) -> None:
        self._timers.at(now + self.options.timing.heartbeat_s, self._beat)
        self._beats += 1
        for link in self.topology.beat(now):
            self._sessions.end(now, link, messages.ByeReason.OVERLOADED, "more streams than this node keeps")
        self._dialer.calm_s = self.options.timing.dial_max_s * self.topology.crowd()
        self.far.set_active(now, self.topology.bounded)
        self.membership.sparse = self.topology.bounded
        self.detector.beat(now, among_connected=self.topology.bounded)
        self._publisher.beat(now)
        unreachable = (
            [] if self.topology.bounded else [each for each in self.table if self._is_unreachable(each)]
        )
        self.follower.beat(now, [peer.node_id for peer in unreachable])
        self._speculation.expire(now)
        if self._beats % EXCHANGE_BEATS == 0:
            self.membership.exchange()
        if self._beats % SWEEP_BEATS == 0:
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        self.membership.sweep(now)
        self.far.sweep(now)
        self._store_peers()

    def _store_peers(self) -> None:
        met = [peer for peer in self.table if peer.hello is not None and not peer.gone]
        key, value = store_peers((peer.node_id, peer.addresses) for peer in met)
        if met and value != self._stored_peers:
            self._stored_peers = value
            self._outbox.persist(key, value)

    # -- questions --------------------------------------------------------------------------------

    def _is_connected(self, node_id: NodeId) -> bool:
        return self.links.active(node_id) is not None

    def _needs_no_dial(self, node_id: NodeId) -> bool:
        return self._is_connected(node_id) or not self.topology.still_wants(node_id)

    def _is_followed(self, node_id: NodeId) -> bool:
        peer = self.table.get(node_id)
        same = peer is not None and peer.hello is not None and peer.hello.model == self.options.model
        return peer is not None and peer.present and same

    def _is_known(self, node_id: NodeId) -> bool:
        peer = self.table.get(node_id)
        return peer is not None and not peer.gone

    def _is_unreachable(self, peer: PeerRecord) -> bool:
        return peer.present and not self._is_connected(peer.node_id) and self._is_followed(peer.node_id)

    def _view(self, now: float, peer: PeerRecord) -> PeerView:
        hello, replica = peer.hello, self.follower.replicas.get(peer.node_id)
        far = self.far.far.get(peer.node_id)
        load = self.loads.load_of(peer.node_id)
        current_at = far.at if far is not None else replica.current_at if replica is not None else None
        blocks = replica.digest.count if replica is not None else 0
        return PeerView(
            node_id=peer.node_id,
            state=peer.state,
            connected=self._is_connected(peer.node_id),
            addresses=peer.addresses,
            model=hello.model if hello is not None else far.summary.model if far is not None else b"",
            model_name=hello.model_name if hello is not None else "",
            http_url=hello.http_url if hello is not None else "",
            rtt_s=self.loads.rtt_of(peer.node_id),
            load=load[0] if load is not None else None,
            load_age_s=now - load[1] if load is not None else None,
            cached_blocks=far.summary.count if far is not None else blocks,
            replica_age_s=now - current_at if current_at is not None else None,
        )


SLOW_BYTES = 256 << 10
"""A link with more bytes waiting is slow; gRPC lets 4 MiB pile up before it blocks."""
