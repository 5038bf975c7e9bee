"""Random schedules of faults: what must hold whatever happens, checked in the middle and at the end."""

from __future__ import annotations

import random
from dataclasses import dataclass

from overlay.core.timing import Timing
from overlay.sim.network import NetworkOptions
from overlay.sim.parts import WorldOptions
from overlay.sim.world import World

HEAL_S = 60.0
"""Invariant 6: a mesh left alone is whole again within this."""

CONVERGE_ROUNDS = 16
"""Twice invariant 3: a schedule ends with streams just made."""


FAULTS = (
    "store", "store", "remove", "share", "clear", "burst", "crash", "crash", "restart",
    "vanish", "leave", "pause", "split", "cut", "heal",
)  # fmt: skip


class ScheduleFailedError(AssertionError):
    """An invariant didn't hold; the text names the seed that shows it again."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """`steps` random faults on a mesh; seven seeds of eight run a mesh of bounded degree."""

    seed: int
    nodes: int = 30
    steps: int = 10

    @property
    def bounded(self) -> bool:
        return self.seed % 8 != 0

    def world(self) -> World:
        rng = random.Random(f"schedule {self.seed}")
        network = NetworkOptions(
            latency_s=(0.0005, rng.choice([0.005, 0.05, 0.2])),
            loss=rng.choice([0.0, 0.0, 0.05, 0.1]),
            duplication=rng.choice([0.0, 0.05]),
            reordering=rng.choice([0.0, 0.1]),
            tcp_timeout_s=8.0,
            dial_timeout_s=1.0,
        )
        options = WorldOptions(
            nodes=self.nodes,
            seed=self.seed,
            seeds=rng.choice([1, 3]),
            network=network,
            timing=Timing(load_max_s=4.0, flush_s=0.5, head_refresh_s=5.0, filter_s=5.0),
            full_mesh=8 if self.bounded else 256,
            degree=6,
        )
        return World(options)


class ScheduleRunner:
    """One schedule in its world."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.world = schedule.world()
        self.rng = random.Random(f"steps {schedule.seed}")
        self.log: list[str] = []
        self._next_block = 0

    def run(self) -> World:
        """Runs it to the end; raises ScheduleFailedError."""
        world = self.world
        for number in range(self.schedule.nodes):
            world.start(number)
        self._require(world.run_until(self._together, 60.0), "the mesh never met")
        for number in range(self.schedule.nodes):
            world.store(number, self._fresh(self.rng.randrange(20)))
        for _ in range(self.schedule.steps):
            self._step()
            world.run(self.rng.choice([0.1, 0.5, 2.0]))
        self._check_replicas()
        self._recover()
        return world

    def _recover(self) -> None:
        """Faults end, everybody is started again: the mesh must become whole and agree."""
        world = self.world
        world.heal()
        for node in world.nodes:
            if node.core is None:
                world.start(node.number)
        self._require(world.run_until(self._together, world.now + HEAL_S), "the mesh didn't heal")
        rounds = CONVERGE_ROUNDS * world.options.timing.heartbeat_s
        agreed = world.neighbours_converged if self.schedule.bounded else world.converged
        self._require(world.run_until(agreed, world.now + rounds), "replicas don't equal their origins")
        self._check_replicas()
        self._require(
            not world.tally.false_deaths, f"healthy nodes declared dead: {world.tally.false_deaths}"
        )

    def _together(self) -> bool:
        world = self.world
        if not self.schedule.bounded:
            return world.acquainted()
        return world.well_connected() and world.in_one_piece()

    def _step(self) -> None:
        rng, world = self.rng, self.world
        node = rng.randrange(self.schedule.nodes)
        running = world.nodes[node].healthy
        kind = rng.choice(FAULTS)
        self.log.append(f"{world.now:.2f} {kind} n{node}")
        match kind:
            case "store" | "burst":
                count = 500 if kind == "burst" else rng.randrange(1, 30)
                if running:
                    world.store(node, self._fresh(count))
            case "remove" if running:
                blocks = sorted(world.nodes[node].blocks)
                world.remove(node, rng.sample(blocks, len(blocks) // 2))
            case "share" if running:
                other = rng.randrange(self.schedule.nodes)
                world.store(node, sorted(world.nodes[other].blocks))
            case "clear" if running:
                world.clear(node)
            case "crash" | "vanish" if running:
                world.crash(node, silently=kind == "vanish")
            case "leave" if running:
                world.leave(node)
            case "restart" if world.nodes[node].core is None:
                if rng.random() < 0.3:
                    world.clock_ms -= rng.randrange(10**8)
                world.start(node, keep_disk=rng.random() < 0.7)
            case "pause" if running:
                world.pause(node, rng.choice([1.0, 5.0, 15.0]))
            case "split":
                numbers = list(range(self.schedule.nodes))
                rng.shuffle(numbers)
                world.partition([numbers[: rng.randrange(1, self.schedule.nodes)]])
            case "cut":
                world.cut(node, (node + 1 + rng.randrange(self.schedule.nodes - 1)) % self.schedule.nodes)
            case "heal":
                world.heal()
            case _:
                pass

    def _check_replicas(self) -> None:
        wrong = self.world.wrong_replicas()
        self._require(not wrong, "; ".join(wrong[:5]))

    def _fresh(self, count: int) -> list[int]:
        first = self._next_block
        self._next_block += count
        return [(block + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1 for block in range(first, first + count)]

    def _require(self, held: bool, otherwise: str) -> None:
        if not held:
            steps = ", ".join(self.log)
            text = f"seed {self.schedule.seed} at {self.world.now:.2f} s: {otherwise}. Steps: {steps}"
            raise ScheduleFailedError(text)


def run_schedule(seed: int, nodes: int = 30, steps: int = 10) -> World:
    """Runs one random schedule; raises ScheduleFailedError."""
    return ScheduleRunner(Schedule(seed, nodes, steps)).run()
