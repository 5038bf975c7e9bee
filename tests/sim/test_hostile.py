"""One node of the mesh lies, replays, forges or floods; the others stay right about one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from overlay.core.core import Core
from overlay.core.hashes import to_array
from overlay.core.limits import MAX_MEMBERS
from overlay.core.messages import Delta, Head, Heads, Hello, Member, Members, MemberState, Message, Snapshot
from overlay.core.timing import Timing
from overlay.core.types import Address, NodeId, Version
from overlay.core.views import PeerState
from overlay.sim.parts import WorldOptions
from overlay.sim.world import World

LIAR = 3
HONEST = (0, 1, 2, 4, 5)


class Liar:
    """Everything the liar ever said, and the world it may look at."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.said: list[Message] = []
        self.count = 0

    def victim(self) -> NodeId:
        return self.world.nodes[1].node_id

    def replays(self, message: Message) -> Iterable[Message]:
        if isinstance(message, Hello):
            return [message]
        self.said.append(message)
        return [message, *self.said[:: max(1, len(self.said) // 5)]]

    def forges_heads(self, message: Message) -> Iterable[Message]:
        if isinstance(message, Heads):
            yield from (Heads((self._forged(head),)) for head in message.heads)
        yield message

    def _forged(self, head: Head) -> Head:
        return replace(head, origin=self.victim(), version=Version(head.version + 1000), count=7)

    def forges_sets(self, message: Message) -> Iterable[Message]:
        if isinstance(message, Delta):
            victim = self.world.nodes[1].core
            assert victim is not None
            version = victim.own.version
            yield replace(message, origin=self.victim(), epoch=victim.own.epoch, version_from=version,
                          version_to=Version(version + 1), added=to_array([666]))  # fmt: skip
            yield Snapshot(self.victim(), victim.own.epoch, Version(version + 9), 0, 1, to_array([666]))
        yield message

    def slanders(self, message: Message) -> Iterable[Message]:
        if isinstance(message, Members):
            news = []
            for number in HONEST:
                core = self.world.nodes[number].core
                if core is not None:
                    state = MemberState.DEAD if self.count % 2 else MemberState.SUSPECT
                    incarnation = core.membership.incarnation
                    news.append(
                        Member(self.world.nodes[number].node_id, state, incarnation, (), self.victim())
                    )
            self.count += 1
            yield Members(tuple(news))
        yield message

    def invents_members(self, message: Message) -> Iterable[Message]:
        yield message
        if not isinstance(message, Hello) and self.count < 6_000:
            news = []
            for _ in range(100):
                self.count += 1
                address = Address(f"ghost{self.count}", 1)
                news.append(Member(NodeId(f"ghost{self.count:047}"), MemberState.ALIVE, 1, (address,)))
            yield Members(tuple(news))

    def boasts(self, message: Message) -> Iterable[Message]:
        if isinstance(message, Delta):
            self.count += 1
            lies = to_array(range(self.count * 30_000, (self.count + 1) * 30_000))
            yield replace(message, added=lies)
        else:
            yield message

    def floods(self, message: Message) -> Iterable[Message]:
        return [message] * (1 if isinstance(message, Hello) else 3000)


def _mesh_with(trick: Callable[[Liar, Message], Iterable[Message]], seconds: int = 30) -> World:
    world = World(WorldOptions(nodes=6, seed=21, timing=Timing.lan(), index_bytes=2 << 20))
    for number in range(6):
        world.start(number)
    assert world.run_until(world.acquainted, 10.0)
    liar = Liar(world)
    world.tamper[LIAR] = lambda message: list(trick(liar, message))
    for second in range(seconds):
        for number in range(6):
            world.store(number, [number * 10**6 + second * 100 + block for block in range(10)])
        if second == 15:
            world.remove(1, sorted(world.nodes[1].blocks)[:50])
        world.run(1.0)
    return world


@pytest.mark.parametrize(
    "trick",
    [
        Liar.replays,
        Liar.forges_heads,
        Liar.forges_sets,
        Liar.slanders,
        Liar.invents_members,
        Liar.boasts,
        Liar.floods,
    ],
    ids=lambda trick: trick.__name__,
)
def test_the_honest_agree(trick: Callable[[Liar, Message], Iterable[Message]]) -> None:
    world = _mesh_with(trick)
    assert world.run_until(world.converged, world.now + 8.0)
    assert world.wrong_replicas() == []
    honest_deaths = [death for death in world.tally.deaths if LIAR not in death[1:]]
    assert honest_deaths == []
    for number in HONEST:
        core = _core(world, number)
        assert len(core.table) <= MAX_MEMBERS
        assert core.index.bytes <= core.options.index_bytes
        assert 666 not in core.index._masks
        connected = core.links.connected()
        assert all(world.nodes[other].node_id in connected for other in HONEST if other != number)


def test_a_flood_is_cut_off() -> None:
    world = _mesh_with(Liar.floods, seconds=3)
    assert all(world.nodes[LIAR].node_id not in _connected(world, number) for number in HONEST)


def test_ghosts_reach_nobody_but_the_liars_own_neighbours() -> None:
    world = World(WorldOptions(nodes=3, seed=22, timing=Timing.lan()))
    for number in range(3):
        world.start(number)
    assert world.run_until(world.acquainted, 10.0)
    world.cut(0, 2)
    world.cut(2, 0)
    world.run(30.0)
    liar = Liar(world)
    liar.count = 5_000
    world.tamper[2] = lambda message: list(liar.invents_members(message))
    world.run(200.0)
    states = [peer.state for peer in _core(world, 1).table]
    assert PeerState.CANDIDATE in states
    assert all(peer.node_id in {node.node_id for node in world.nodes} for peer in _core(world, 0).table)


def _core(world: World, number: int) -> Core:
    core = world.nodes[number].core
    assert core is not None
    return core


def _connected(world: World, number: int) -> list[NodeId]:
    return _core(world, number).links.connected()
