"""The membership protocol: merging news, suspecting, refuting, forgetting.

SWIM (Das et al., DSN 2002) with Lifeguard's suspicion (arXiv 1707.00788), over authenticated streams.
Two rules are this project's own. A node vouches only for peers whose Hello it has authenticated itself,
so a liar's inventions stop at its neighbours. And nobody is dead on hearsay who is connected here:
such news only confirms a suspicion.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from overlay.core.errors import ProtocolError
from overlay.core.limits import MAX_EPOCH, MAX_MEMBERS_PER_FRAME
from overlay.core.links import Link, LinkTable
from overlay.core.members import MemberTable, NewsQueue, PeerRecord, as_alive, plausible, state_of, supersedes
from overlay.core.messages import Hello, Member, Members, MemberState
from overlay.core.outbox import Outbox
from overlay.core.suspicion import Suspicion
from overlay.core.timers import Timers
from overlay.core.timing import Timing
from overlay.core.types import Address, NodeId
from overlay.core.views import MemberChanged, PeerState

INTRODUCTION = 16
"""Members told to a peer that just connected: whoever shares the mesh knows them already."""

FULL_EXCHANGE = MAX_MEMBERS_PER_FRAME
"""Members told to a newcomer, at random; its first few peers together tell it everyone."""

SMALL_EXCHANGE = 64
"""Members told now and then: 4 KiB."""


@dataclass(slots=True, eq=False)
class Membership:
    """What this node believes of every other, and tells them.

    `sparse` says that peers' neighbours are rarely this node's: the mesh is too large for all to be
    connected. `found` is called with each new candidate, `gone` with each peer that died or left, and
    `forgotten` with each that isn't known any more.
    """

    own_id: NodeId
    incarnation: int
    addresses: tuple[Address, ...]
    table: MemberTable
    links: LinkTable
    timing: Timing
    timers: Timers
    outbox: Outbox
    rng: random.Random
    found: Callable[[float, PeerRecord], None]
    gone: Callable[[float, PeerRecord], None]
    forgotten: Callable[[NodeId], None]
    news: NewsQueue = field(init=False)
    refutations: int = 0
    sparse: bool = False
    _suspicions: dict[NodeId, Suspicion] = field(default_factory=dict)
    _spreading: bool = False

    def __post_init__(self) -> None:
        self.news = NewsQueue()

    # -- first-hand knowledge ---------------------------------------------------------------------

    def met(self, now: float, hello: Hello) -> None:
        """A Hello was authenticated. A live stream is proof of life, whatever was believed."""
        peer = self.table.get(hello.node_id)
        if peer is None:
            peer = PeerRecord(hello.node_id, PeerState.CANDIDATE, hello.incarnation, now)
            if not self._add(peer):
                return
        stale = peer.news() if supersedes(peer.news(), as_alive(hello)) else None
        first_told = peer.hello is None and peer.incarnation == hello.incarnation
        news = peer.hello != hello
        peer.hello = hello
        peer.addresses = hello.addresses
        if hello.incarnation > peer.incarnation or not peer.present:
            peer.incarnation = hello.incarnation
            self._set(now, peer, PeerState.ALIVE)
        if stale is not None:
            self._tell(peer.node_id, stale)
        elif news:
            self._pass_on(now, peer, again=first_told)

    def greet(self, link: Link) -> None:
        """Tells a peer that just connected of a few others; it will tell as much."""
        link.introduced = False
        self.outbox.send(link.id, Members(self._vouched(INTRODUCTION)))

    def exchange(self) -> None:
        """Tells a random peer of some members, should news have been lost.

        Until the next time, each peer that tells of few in return is told of many once more: whoever
        joined a large mesh among the first may have met nobody since.
        """
        for ready in self.links.ready():
            ready.introduced = False
        peers = self.links.connected()
        link = self.links.active(self.rng.choice(peers)) if peers else None
        known = self._vouched(SMALL_EXCHANGE)
        if link is not None and known:
            self.outbox.send(link.id, Members(known))

    def _vouched(self, limit: int) -> tuple[Member, ...]:
        known = [peer for peer in self.table if peer.hello is not None]
        if len(known) > limit:
            known = self.rng.sample(known, limit)
        return tuple(peer.news() for peer in known)

    def alive(self, now: float, node_id: NodeId, incarnation: int) -> None:
        """A probe was answered in this incarnation."""
        self._merge(now, Member(node_id, MemberState.ALIVE, incarnation), None)

    def suspect(self, now: float, node_id: NodeId) -> None:
        """This node's own probes of a peer failed."""
        peer = self.table.get(node_id)
        if peer is not None and peer.present:
            self._suspect(now, peer, self.own_id)

    def left(self, now: float, node_id: NodeId) -> None:
        """A peer said goodbye on its own stream."""
        peer = self.table.get(node_id)
        if peer is not None and not peer.gone:
            self._end(now, peer, PeerState.LEFT)

    # -- hearsay ----------------------------------------------------------------------------------

    def on_members(self, now: float, link: Link, message: Members) -> None:
        """Merges news; raises ProtocolError for impossible ones.

        A peer whose first news is short, or first since the last exchange, knows few others and is told of
        many.
        """
        if not link.introduced:
            link.introduced = True
            known = self._vouched(FULL_EXCHANGE)
            if len(message.members) < INTRODUCTION < len(known):
                self.outbox.send(link.id, Members(known))
        for news in message.members:
            if not plausible(news):
                raise ProtocolError(f"impossible news of {news.node_id[:8]}")
            if news.node_id == self.own_id:
                self._hear_of_self(now, news)
            else:
                self._merge(now, news, link)

    def hint(self, now: float, node_id: NodeId, addresses: tuple[Address, ...]) -> None:
        """A peer may be at these addresses: a candidate, unless it is known better."""
        self._merge(now, Member(node_id, MemberState.ALIVE, 0, addresses), None)

    def announce(self, now: float) -> None:
        """Something about this node changed: a new incarnation says so."""
        self.incarnation += 1
        self.news.put(self.own_news())
        self.spread(now)

    def own_news(self) -> Member:
        return Member(self.own_id, MemberState.ALIVE, self.incarnation, self.addresses)

    def _hear_of_self(self, now: float, news: Member) -> None:
        if news.state is MemberState.ALIVE:
            if news.incarnation > self.incarnation:
                self.incarnation = min(news.incarnation, MAX_EPOCH - 2)
                self.announce(now)
        elif news.incarnation >= self.incarnation:
            self.refutations += 1
            self.incarnation = min(news.incarnation, MAX_EPOCH - 2)
            self.announce(now)

    def _merge(self, now: float, news: Member, link: Link | None) -> None:
        peer = self.table.get(news.node_id)
        if peer is None:
            if news.state in (MemberState.ALIVE, MemberState.SUSPECT):
                self._find(now, news)
            return
        if not peer.present and not peer.gone:
            self._update_candidate(now, peer, news)
            return
        if news.state is MemberState.SUSPECT and news.incarnation == peer.incarnation and peer.present:
            self._suspect(now, peer, news.reporter or (link.peer if link else self.own_id))
            return
        if not supersedes(news, peer):
            return
        state = state_of(news)
        connected = self.links.active(peer.node_id) is not None
        if state is PeerState.ALIVE:
            peer.incarnation = news.incarnation
            peer.addresses = news.addresses or peer.addresses
            if peer.gone and not connected:
                peer.hello = None
                self._set(now, peer, PeerState.CANDIDATE)
                self.found(now, peer)
                return
            self._set(now, peer, PeerState.ALIVE)
            self._pass_on(now, peer)
        elif peer.gone:
            return
        elif state is PeerState.SUSPECT or connected:
            if news.incarnation > peer.incarnation:
                self._suspicions.pop(peer.node_id, None)
            peer.incarnation = news.incarnation
            self._suspect(now, peer, news.reporter or (link.peer if link else self.own_id))
        else:
            peer.incarnation = news.incarnation
            peer.suspected_by = news.reporter
            self._end(now, peer, state)

    def _find(self, now: float, news: Member) -> None:
        peer = PeerRecord(news.node_id, PeerState.CANDIDATE, news.incarnation, now, news.addresses)
        if news.addresses and self._add(peer):
            self.outbox.emit(MemberChanged(peer.node_id, peer.state))
            self.found(now, peer)

    def _update_candidate(self, now: float, peer: PeerRecord, news: Member) -> None:
        if news.incarnation < peer.incarnation:
            return
        if news.state in (MemberState.DEAD, MemberState.LEFT):
            self.gone(now, peer)
            self._forget(peer)
        elif news.addresses and (news.incarnation, news.addresses) != (peer.incarnation, peer.addresses):
            peer.incarnation = news.incarnation
            peer.addresses = tuple(dict.fromkeys(news.addresses + peer.addresses))[: len(news.addresses) + 4]
            self.found(now, peer)

    # -- suspicion --------------------------------------------------------------------------------

    def forgive(self, lag_s: float) -> None:
        """This node itself was late: whoever is suspected gets that time back."""
        for suspicion in self._suspicions.values():
            suspicion.started_at += lag_s

    def _suspect(self, now: float, peer: PeerRecord, reporter: NodeId) -> None:
        suspicion = self._suspicions.get(peer.node_id)
        if peer.state is not PeerState.SUSPECT or suspicion is None:
            suspicion = Suspicion.begin(now, self.timing, self.table.size(), alone=self.sparse)
            self._suspicions[peer.node_id] = suspicion
            peer.suspected_by = reporter
            self._set(now, peer, PeerState.SUSPECT)
            self._tell(peer.node_id, peer.news())
        if not suspicion.confirm(reporter):
            return
        self.news.put(Member(peer.node_id, MemberState.SUSPECT, peer.incarnation, peer.addresses, reporter))
        self.spread(now)
        self.timers.at(suspicion.deadline, lambda at: self._expire(at, peer, suspicion))

    def _expire(self, now: float, peer: PeerRecord, suspicion: Suspicion) -> None:
        if self._suspicions.get(peer.node_id) is not suspicion:
            return
        if now < suspicion.deadline:
            self.timers.at(suspicion.deadline, lambda at: self._expire(at, peer, suspicion))
            return
        link = self.links.active(peer.node_id)
        if link is not None and now - link.heard_at < suspicion.shortest:
            self._set(now, peer, PeerState.ALIVE)
            return
        peer.suspected_by = self.own_id
        self._end(now, peer, PeerState.DEAD)

    # -- endings ----------------------------------------------------------------------------------

    def _end(self, now: float, peer: PeerRecord, state: PeerState) -> None:
        self._set(now, peer, state)
        self._pass_on(now, peer)
        self.gone(now, peer)

    def sweep(self, now: float) -> None:
        """Forgets whoever has been gone, or an unanswering candidate, for long enough."""
        for peer in self.table if self.table.absent() else ():
            life = self.timing.forget_s if peer.gone else self.timing.candidate_s
            if not peer.present and now - peer.changed_at > life:
                self._forget(peer)

    def _forget(self, peer: PeerRecord) -> None:
        self.table.forget(peer.node_id)
        self.news.drop(peer.node_id)
        self.outbox.emit(MemberChanged(peer.node_id, None))
        self.forgotten(peer.node_id)

    def _add(self, peer: PeerRecord) -> bool:
        """Whether there was room; in a full table, who matters least makes it."""
        if self.table.full:
            spare = self.table.spare()
            if spare is None:
                return False
            self._forget(spare)
        self.table.add(peer)
        return True

    def _set(self, now: float, peer: PeerRecord, state: PeerState) -> None:
        if state is not PeerState.SUSPECT:
            self._suspicions.pop(peer.node_id, None)
            if state is PeerState.ALIVE:
                peer.suspected_by = None
        if peer.state is not state:
            self.table.move(peer, state)
            peer.changed_at = now
            self.outbox.emit(MemberChanged(peer.node_id, state))

    # -- spreading --------------------------------------------------------------------------------

    def spread(self, now: float) -> None:
        """Sends news on soon, unless that is already planned."""
        if not self._spreading and len(self.news):
            self._spreading = True
            self.timers.at(now + self.timing.gossip_s * self.rng.uniform(0.5, 1.0), self._gossip)

    def _gossip(self, now: float) -> None:
        self._spreading = False
        peers = self.links.connected()
        if not peers:
            return
        chosen = self.rng.sample(peers, min(self.timing.gossip_fanout, len(peers)))
        members = self.news.take(MAX_MEMBERS_PER_FRAME, self.table.size(), len(chosen))
        for peer in chosen:
            link = self.links.active(peer)
            if link is not None and members:
                self.outbox.send(link.id, Members(members))
        self.spread(now)

    def _pass_on(self, now: float, peer: PeerRecord, *, again: bool = False) -> None:
        """Vouches for a peer; less loudly if others have told it already."""
        if peer.hello is not None:
            self.news.put(peer.news(), again=again)
            self.spread(now)

    def _tell(self, node_id: NodeId, news: Member) -> None:
        """A peer hears at once what is said of it, so that it can refute."""
        link = self.links.active(node_id)
        if link is not None:
            self.outbox.send(link.id, Members((news,)))
