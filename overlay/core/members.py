"""Who is in the mesh, as this node sees it, and the news that spreads it.

Precedence of news is SWIM's (Das et al., DSN 2002, section 4.2): a higher incarnation wins; at the same
incarnation suspect beats alive, and dead or left beat both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from overlay.core.limits import MAX_ADDRESSES_PER_NODE, MAX_EPOCH, MAX_MEMBERS
from overlay.core.messages import Hello, Member, MemberState
from overlay.core.types import Address, NodeId
from overlay.core.views import PeerState

_RANK = {
    PeerState.CANDIDATE: 0,
    PeerState.ALIVE: 0,
    PeerState.SUSPECT: 1,
    PeerState.DEAD: 2,
    PeerState.LEFT: 2,
}
_STATE = {
    MemberState.ALIVE: PeerState.ALIVE,
    MemberState.SUSPECT: PeerState.SUSPECT,
    MemberState.DEAD: PeerState.DEAD,
    MemberState.LEFT: PeerState.LEFT,
}
_WIRE = {state: wire for wire, state in _STATE.items()}


@dataclass(slots=True, eq=False)
class PeerRecord:
    """One peer. `hello` is the last one authenticated; without it the peer is a candidate."""

    node_id: NodeId
    state: PeerState
    incarnation: int
    changed_at: float
    addresses: tuple[Address, ...] = ()
    hello: Hello | None = None
    suspected_by: NodeId | None = None

    @property
    def present(self) -> bool:
        """Whether the peer counts as a member: authenticated once, and not gone."""
        return self.state in (PeerState.ALIVE, PeerState.SUSPECT)

    @property
    def gone(self) -> bool:
        return self.state in (PeerState.DEAD, PeerState.LEFT)

    def news(self) -> Member:
        """What this node vouches for."""
        state = _WIRE.get(self.state, MemberState.ALIVE)
        return Member(self.node_id, state, self.incarnation, self.addresses, self.suspected_by)


@dataclass(slots=True, eq=False)
class MemberTable:
    """Every peer known, at most MAX_MEMBERS; this node itself isn't among them.

    A peer's state is changed by `move` alone, which keeps count.
    """

    own_id: NodeId
    _peers: dict[NodeId, PeerRecord] = field(default_factory=dict)
    _count: dict[PeerState, int] = field(default_factory=lambda: dict.fromkeys(PeerState, 0))

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[PeerRecord]:
        return iter(tuple(self._peers.values()))

    def get(self, node_id: NodeId) -> PeerRecord | None:
        return self._peers.get(node_id)

    @property
    def full(self) -> bool:
        return len(self._peers) >= MAX_MEMBERS

    def spare(self) -> PeerRecord | None:
        """Who matters least: the candidate, dead or departed peer that has been known for longest."""
        return next((peer for peer in self._peers.values() if not peer.present), None)

    def add(self, record: PeerRecord) -> None:
        self._peers[record.node_id] = record
        self._count[record.state] += 1

    def move(self, peer: PeerRecord, state: PeerState) -> None:
        """Changes what is believed of a peer."""
        if self._peers.get(peer.node_id) is peer:
            self._count[peer.state] -= 1
            self._count[state] += 1
        peer.state = state

    def forget(self, node_id: NodeId) -> None:
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            self._count[peer.state] -= 1

    def size(self) -> int:
        """Members, this node included."""
        return 1 + self._count[PeerState.ALIVE] + self._count[PeerState.SUSPECT]

    def absent(self) -> int:
        """Peers that count as no members: candidates, and the gone."""
        return len(self._peers) + 1 - self.size()

    def gone(self) -> int:
        """The dead and departed that are remembered."""
        return self._count[PeerState.DEAD] + self._count[PeerState.LEFT]


def supersedes(news: Member, peer: PeerRecord) -> bool:
    """Whether second-hand news changes what is believed of a peer."""
    if news.incarnation != peer.incarnation:
        return news.incarnation > peer.incarnation
    return _RANK[_STATE[news.state]] > _RANK[peer.state]


def as_alive(hello: Hello) -> PeerRecord:
    """A peer as its Hello alone tells of it."""
    return PeerRecord(hello.node_id, PeerState.ALIVE, hello.incarnation, 0.0, hello.addresses, hello)


def state_of(news: Member) -> PeerState:
    return _STATE[news.state]


def plausible(news: Member) -> bool:
    """Whether news keeps the limits; the codec has checked its shape."""
    return 0 <= news.incarnation < MAX_EPOCH and len(news.addresses) <= MAX_ADDRESSES_PER_NODE


_LAST_ROUND = 1 << 16


class NewsQueue:
    """Membership news on its way, each piece passed on a few times, the freshest first.

    Suspicions of one node by different reporters are different news: they are counted.
    """

    REPEATS = 3
    """Times log2 of the mesh's size: enough for everyone with high probability (SWIM, section 4.1)."""

    def __init__(self) -> None:
        self._news: dict[tuple[NodeId, NodeId | None], tuple[int, Member]] = {}

    def __len__(self) -> int:
        return len(self._news)

    def put(self, news: Member, *, again: bool = False) -> None:
        """Adds a piece of news, which replaces what it makes old; told `again`, one round is enough."""
        suspicion = news.state is MemberState.SUSPECT
        if not suspicion:
            self.drop(news.node_id)
        self._news[news.node_id, news.reporter if suspicion else None] = (_LAST_ROUND if again else 0, news)

    def drop(self, node_id: NodeId) -> None:
        """Says no more of a node."""
        for key in [key for key in self._news if key[0] == node_id]:
            del self._news[key]

    def take(self, limit: int, mesh_size: int, copies: int) -> tuple[Member, ...]:
        """The news said least often so far, which are about to be sent to `copies` peers."""
        most = self.REPEATS * math.ceil(math.log2(mesh_size + 1))
        chosen = sorted(self._news.items(), key=lambda entry: entry[1][0])[:limit]
        for key, (sent, member) in chosen:
            if sent + copies >= most:
                del self._news[key]
            else:
                self._news[key] = (sent + copies, member)
        return tuple(member for _, (_, member) in chosen)
