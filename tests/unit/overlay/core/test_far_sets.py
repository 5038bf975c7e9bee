"""Large meshes: bounded degree, and filters of the sets of neighbours' neighbours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from overlay.core import bloom
from overlay.core.events import LinkDown, LinkId
from overlay.core.heads import filter_payload
from overlay.core.limits import MAX_FAR_BYTES, MAX_FILTER_BYTES
from overlay.core.messages import ByeReason, Filter, Member, Members, MemberState
from overlay.core.timing import Timing
from overlay.core.types import Address, BlockHash, Epoch, NodeId, Version
from overlay.sim.parts import WorldOptions
from overlay.sim.signer import SimSigner
from overlay.sim.world import World
from tests.unit.overlay.core.harness import ADDRESS, HIGHEST, LOWEST, MODEL, OTHER, PEER, Harness, node_id


def _filter(origin: NodeId, blocks: list[int], version: int = 1) -> Filter:
    bits = bloom.build(np.array(blocks, dtype=np.uint64))
    bare = Filter(origin, Epoch(10), Version(version), len(blocks), bloom.PROBES, bits, MODEL)
    signer = SimSigner(origin)
    signature = signer.sign(filter_payload(origin, bare))
    return replace(
        bare, signature=signature, gossip_key=signer.gossip_key, gossip_key_certificate=signer.certificate
    )


def _crowded() -> Harness:
    """A node that knows more peers than it may be connected to."""
    node = Harness(full_mesh=4, degree=4)
    node.connect(1)
    strangers = tuple(
        Member(node_id(f"s{number}"), MemberState.ALIVE, 1, (Address(f"s{number}", 1),))
        for number in range(9)
    )
    node.receive(1, Members((*strangers, Member(OTHER, MemberState.ALIVE, 1, (ADDRESS[OTHER],)))))
    node.run(2.0, living=(1,))
    node.clear()
    return node


def test_a_far_filter_is_looked_up() -> None:
    node = _crowded()
    node.receive(1, _filter(OTHER, [11, 12, 13]))
    assert node.core.match([BlockHash(11), BlockHash(12), BlockHash(99)]) == {OTHER: 2}
    view = {each.node_id: each for each in node.core.peers(node.now)}[OTHER]
    assert (view.cached_blocks, view.model, view.replica_age_s) == (3, MODEL, 0.0)


def test_a_forged_filter_is_not_kept() -> None:
    node = _crowded()
    genuine = _filter(OTHER, [11])
    node.receive(1, replace(genuine, bits=b"\xff" * 32))
    node.receive(1, replace(_filter(PEER, [11]), origin=OTHER))
    assert node.core.match([BlockHash(11)]) == {}


def test_an_older_filter_does_not_replace_a_newer_one() -> None:
    node = _crowded()
    node.receive(1, _filter(OTHER, [11], version=5))
    node.receive(1, _filter(OTHER, [12], version=4))
    assert node.core.match([BlockHash(11)]) == {OTHER: 1}


def test_a_neighbours_filter_goes_on_to_other_neighbours_with_its_key_once() -> None:
    node = _crowded()
    node.connect(2, LOWEST)
    node.clear()
    own = replace(_filter(PEER, [11]), origin=None)
    for _ in range(2):
        node.receive(1, replace(own, gossip_key=b"", gossip_key_certificate=b""))
    relayed = node.sent(Filter, link=2)
    assert [each.origin for each in relayed] == [PEER, PEER]
    assert [bool(each.gossip_key) for each in relayed] == [True, False]
    assert node.sent(Filter, link=1) == []


def test_a_far_filter_goes_no_further() -> None:
    node = _crowded()
    node.connect(2, LOWEST)
    node.clear()
    node.receive(1, _filter(OTHER, [11]))
    assert node.sent(Filter) == []


def test_a_filter_of_an_impossible_shape_is_a_violation() -> None:
    node = _crowded()
    node.receive(1, replace(_filter(OTHER, [11]), bits=b"xyz"))
    assert node.byes() == [(1, ByeReason.PROTOCOL)]


def test_far_filters_together_are_bounded() -> None:
    node = _crowded()
    bits = bytes(MAX_FILTER_BYTES)
    for number in range(MAX_FAR_BYTES // MAX_FILTER_BYTES + 10):
        origin = node_id(f"far{number}")
        node.receive(1, Members((Member(origin, MemberState.ALIVE, 1, (Address("far", 1 + number),)),)))
        bare = replace(_filter(origin, [11]), bits=bits)
        signature = SimSigner(origin).sign(filter_payload(origin, bare))
        node.receive(1, replace(bare, signature=signature))
    assert sum(len(far.bits) for far in node.core.far.far.values()) == MAX_FAR_BYTES


def test_a_large_mesh_keeps_a_bounded_degree() -> None:
    timing = Timing(filter_s=5.0)
    world = World(WorldOptions(nodes=40, seed=2, full_mesh=12, degree=6, timing=timing))
    for number in range(40):
        world.start(number)
    world.run(30.0)
    cores = [node.core for node in world.nodes if node.core is not None]
    degrees = [len(core.links.connected()) for core in cores]
    assert min(degrees) >= cores[0].topology.fewest
    assert max(degrees) <= cores[0].topology.most + 2
    assert world.in_one_piece()
    world.store(7, range(100))
    world.run(12.0)
    prompt = [BlockHash(block) for block in range(100)]
    seven = world.nodes[7].node_id
    knowing = [core for core in cores if core.match(prompt).get(seven, 0) >= 100]
    assert len(knowing) > cores[7].topology.most + 5  # neighbours exactly, theirs by filter
    assert not world.tally.deaths


def test_a_lost_neighbour_is_called_back_whatever_the_degree() -> None:
    node = _crowded()
    for link, peer in enumerate((LOWEST, OTHER, HIGHEST), start=2):
        node.connect(link, peer)
    assert len(node.core.links.connected()) >= node.core.topology.fewest
    node.tell(LinkDown(LinkId(1)))
    node.clear()
    node.run(8.0, living=(2, 3, 4))
    assert PEER in [dial.node_id for dial in node.dials()]


def test_a_large_mesh_cut_in_two_heals_without_its_seeds() -> None:
    world = World(WorldOptions(nodes=30, seed=3, full_mesh=10, degree=6, timing=Timing.lan()))
    for number in range(30):
        world.start(number)
    world.run(20.0)
    assert world.in_one_piece()
    world.crash(0)  # the only seed
    world.run(20.0)
    world.partition([list(range(15))])
    world.run(120.0)
    assert not world.in_one_piece()
    world.heal()
    assert world.run_until(lambda: world.in_one_piece() and world.well_connected(), world.now + 60.0)
