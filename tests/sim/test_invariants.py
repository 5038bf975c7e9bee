"""Invariants 3 and 4 of the design on small meshes; invariant 2 is checked in every script."""

from __future__ import annotations

import pytest

from overlay.core.timing import Timing
from overlay.core.views import PeerState
from overlay.sim.network import NetworkOptions
from overlay.sim.parts import WorldOptions
from overlay.sim.world import World

LOSSY = NetworkOptions(loss=0.1, duplication=0.02, reordering=0.05)


def _mesh(nodes: int, seed: int, network: NetworkOptions) -> World:
    world = World(WorldOptions(nodes=nodes, seed=seed, network=network, timing=Timing.lan()))
    for number in range(nodes):
        world.start(number)
    assert world.run_until(world.acquainted, 60.0), f"seed {seed}: the mesh never met"
    return world


@pytest.mark.parametrize("seed", range(5))
def test_replicas_equal_their_origins_within_8_rounds_of_the_last_change(seed: int) -> None:
    world = _mesh(12, seed, LOSSY)
    for _ in range(5):
        for number in range(12):
            world.store(number, [world.rng.getrandbits(64) for _ in range(20)])
            world.remove(number, sorted(world.nodes[number].blocks)[:5])
        world.run(0.5)
    rounds = 8 * world.options.timing.heartbeat_s
    assert world.run_until(world.converged, world.now + rounds), f"seed {seed} at {world.now}"
    assert world.wrong_replicas() == []


@pytest.mark.parametrize("keep_disk", [True, False], ids=["disk", "no disk"])
def test_removed_blocks_and_old_epochs_stay_gone(keep_disk: bool) -> None:
    world = _mesh(4, 3, NetworkOptions(duplication=0.3, reordering=0.3, latency_s=(0.001, 0.4)))
    world.store(1, range(100))
    assert world.run_until(world.converged, world.now + 8)
    world.remove(1, range(50))
    world.crash(1)
    world.start(1, keep_disk=keep_disk)
    world.store(1, [1000])
    assert world.run_until(lambda: world.acquainted() and world.converged(), world.now + 30)
    for _ in range(40):
        world.run(0.5)
        assert world.replica(0, 1) == {1000}


def test_a_node_without_disk_and_with_a_clock_in_the_past_is_believed_again() -> None:
    world = _mesh(3, 4, NetworkOptions())
    world.store(2, range(10))
    assert world.run_until(world.converged, world.now + 8)
    world.crash(2)
    world.clock_ms -= 10**9
    world.start(2, keep_disk=False)
    world.store(2, [77])
    assert world.run_until(lambda: world.acquainted() and world.converged(), world.now + 30)
    assert world.wrong_replicas() == []


def test_the_forgotten_stay_forgotten() -> None:
    world = _mesh(5, 5, NetworkOptions())
    world.crash(4)
    seen_dead = world.run_until(
        lambda: all(world.state(number, 4) is PeerState.DEAD for number in range(4)), world.now + 60
    )
    assert seen_dead
    world.run(world.options.timing.forget_s + 60)
    for _ in range(60):
        world.run(1)
        assert all(world.state(number, 4) is None for number in range(4))


def test_two_nodes_see_each_other_within_three_seconds_of_a_skewed_start() -> None:
    world = World(WorldOptions(nodes=2, seed=6))
    world.start(1)  # its seed isn't up yet
    world.run(2.0)
    world.start(0)
    assert world.run_until(world.acquainted, world.now + 3.0)
