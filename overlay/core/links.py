"""The gossip streams of a node, and which one speaks for each peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from overlay.core.events import LinkId
from overlay.core.inbox import Inbox
from overlay.core.messages import Hello
from overlay.core.types import Address, Epoch, NodeId, Version


@dataclass(slots=True, eq=False)
class Link:
    """One stream to an authenticated peer; `hello` is None until the peer's Hello came in.

    `follows` says whether both ends run the same model, so that their sets matter to each other.
    `head_sent` is the newest head of this node's own set sent here, `keys_told` whose gossip keys were,
    and `introduced` whether the peer has told which others it knows. `measured_at` is when the round trip
    was last measured.
    """

    id: LinkId
    peer: NodeId
    dialled: Address | None
    opened_at: float
    hello: Hello | None = None
    follows: bool = False
    slow: bool = False
    introduced: bool = False
    heard_at: float = 0.0
    measured_at: float = float("-inf")
    head_sent: tuple[Epoch, Version] = field(default=(Epoch(0), Version(0)))
    head_sent_at: float = float("-inf")
    head_sends: int = 0
    keys_told: dict[NodeId, bytes] = field(default_factory=dict)
    inbox: Inbox = field(init=False)

    def __post_init__(self) -> None:
        self.inbox = Inbox.full(self.opened_at)

    @property
    def ready(self) -> bool:
        return self.hello is not None


class LinkTable:
    """All streams. At most one ready stream speaks for a peer: its `active` one."""

    def __init__(self, own_id: NodeId) -> None:
        self._own_id = own_id
        self._links: dict[LinkId, Link] = {}
        self._by_peer: dict[NodeId, list[Link]] = {}
        self._active: dict[NodeId, Link] = {}
        self.get: Callable[[LinkId], Link | None] = self._links.get
        self.active: Callable[[NodeId], Link | None] = self._active.get
        """The stream that speaks for a peer, if one is ready."""

    def __len__(self) -> int:
        return len(self._links)

    def add(self, link: Link) -> None:
        self._links[link.id] = link
        self._by_peer.setdefault(link.peer, []).append(link)

    def remove(self, link: Link) -> None:
        """Takes a stream out; another ready one to the same peer becomes its active one."""
        del self._links[link.id]
        siblings = self._by_peer[link.peer]
        siblings.remove(link)
        if not siblings:
            del self._by_peer[link.peer]
        if self._active.get(link.peer) is link:
            del self._active[link.peer]
            for sibling in siblings:
                if sibling.ready:
                    self._active[link.peer] = sibling

    def to(self, peer: NodeId) -> list[Link]:
        """Every stream to a peer, oldest first."""
        return list(self._by_peer.get(peer, ()))

    def all(self) -> list[Link]:
        """Every stream, ready or not."""
        return list(self._links.values())

    def connected(self) -> list[NodeId]:
        """Peers with a ready stream, in the order they came up."""
        return list(self._active)

    def ready(self) -> Iterator[Link]:
        """The active stream of every connected peer."""
        return iter(tuple(self._active.values()))

    def settle(self, link: Link) -> list[Link]:
        """Makes a stream that just became ready, or an older one, the active one; returns the others.

        Both ends keep the stream that the lower id dialled. They decide only once both streams are
        ready, so at least one of them always survives. A peer that dialled twice keeps the later one,
        which its acceptor decides; a peer that restarted (its epoch rose) keeps only new streams.
        """
        ready = [other for other in self.to(link.peer) if other.ready]
        best, losers = ready[0], []
        for other in ready[1:]:
            loser = self._loser(best, other)
            if loser is best:
                best = other
            if loser is not None:
                losers.append(loser)
        self._active[link.peer] = best
        return losers

    def _loser(self, older: Link, newer: Link) -> Link | None:
        if older.hello is not None and newer.hello is not None and older.hello.epoch != newer.hello.epoch:
            return older if older.hello.epoch < newer.hello.epoch else newer
        older_is_mine, newer_is_mine = older.dialled is not None, newer.dialled is not None
        if older_is_mine == newer_is_mine:
            return None if newer_is_mine else older
        mine, theirs = (older, newer) if older_is_mine else (newer, older)
        return theirs if self._own_id < theirs.peer else mine
