"""One simulated mesh from start to crash, and the figures that tell how it went."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from overlay.core.timing import Timing
from overlay.core.types import Epoch, Load
from overlay.core.views import PeerState
from overlay.sim.garbage import uncollected
from overlay.sim.network import NetworkOptions
from overlay.sim.parts import SimNode, WorldOptions
from overlay.sim.world import World

MEET_S = 300.0
CONVERGE_S = 120.0
DETECT_S = 120.0

ANTI_ENTROPY = ("Heads", "Want", "Delta", "Snapshot", "RangeDigests", "RangeWant", "RangeHashes")

IDLE = Load(
    Epoch(0), 0, seconds_per_prefill_token=0.002, seconds_per_decode_step=0.05,
    prefill_tokens_per_step=512, kv_blocks_total=4096,
)  # fmt: skip
"""What an engine without requests tells of itself; the core stamps epoch and sequence."""


@dataclass(frozen=True, slots=True)
class OverlayReport:
    """What a run showed. None where it never came to that.

    `converged_rounds` counts heartbeats from the last change until all replicas equalled their
    origins; `detection_s` runs from a crash until every neighbour has declared it; bytes are those
    sent, framing included, over the steady part; `peak_bytes` is the most any node sent in a second;
    `bytes_per_change` is what heads, wants, deltas, snapshots and repairs took for each block that was
    stored or removed and each neighbour, None when nothing changed; `memory_bytes_per_node` is the
    process's growth shared out, so an upper bound.
    """

    nodes: int
    seed: int
    loss: float
    met_s: float | None
    converged_rounds: float | None
    detection_s: float | None
    false_deaths: int
    bytes_per_node_per_s: float
    peak_bytes: int
    bytes_per_change: float | None
    memory_bytes_per_node: int
    links_per_node: float
    frames: int
    simulated_s: float
    bytes_by_kind: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """What a mesh goes through: blocks at the start, then `steady_s` of churn and changes.

    `churn_per_hour` is the share of nodes that crash and restart in an hour; `changes_per_s` are
    blocks replaced per node and second, each at a moment of its own.
    """

    blocks: int = 1_000
    steady_s: float = 60.0
    churn_per_hour: float = 0.0
    changes_per_s: float = 0.0


def run_overlay(
    nodes: int,
    seed: int = 0,
    loss: float = 0.0,
    *,
    workload: Workload | None = None,
    timing: Timing | None = None,
    full_mesh: int = 256,
    degree: int = 16,
    progress: Callable[[str], None] = lambda _: None,
) -> OverlayReport:
    """Simulates one mesh; raises ValueError for fewer than two nodes or a loss outside [0, 1)."""
    if nodes < 2 or not 0.0 <= loss < 1.0:
        raise ValueError("a mesh has at least two nodes, and a loss of 0 to below 1")
    before = _memory()
    options = WorldOptions(
        nodes=nodes,
        seed=seed,
        seeds=min(3, nodes),
        network=NetworkOptions(loss=loss),
        timing=timing or Timing.lan(),
        full_mesh=full_mesh,
        degree=degree,
        history=False,
        count_bytes=True,
    )
    with uncollected():
        return _Run(World(options), workload or Workload(), before, progress).report()


def rounds_to_converge(nodes: int, seed: int, loss: float, blocks: int = 100) -> float | None:
    """Rounds after which all replicas equal their origins, whose caches all changed at once; None: never."""
    options = WorldOptions(
        nodes=nodes, seed=seed, seeds=min(3, nodes), network=NetworkOptions(loss=loss), history=False
    )
    with uncollected():
        run = _Run(World(options), Workload(blocks=blocks), 0, lambda _: None)
        return run.converge() if run.meet() is not None else None


@dataclass(slots=True, eq=False)
class _Run:
    world: World
    workload: Workload
    memory_before: int
    progress: Callable[[str], None]
    _cached: dict[int, deque[int]] = field(default_factory=dict)
    _next_block: int = 0
    _changes: int = 0

    def report(self) -> OverlayReport:
        world, options = self.world, self.world.options
        met_s = self.meet()
        self.progress(f"met after {met_s} s")
        rounds = self.converge()
        self.progress(f"converged after {rounds} rounds")
        began, bytes_before = world.now, world.tally.bytes_by_kind()
        world.tally.begin_anew()
        self._go_on()
        steady_s = max(world.now - began, 1e-9)
        per_node = 1.0 / (options.nodes * steady_s)
        sent = world.tally.bytes_by_kind()
        sent.subtract(bytes_before)
        peak, memory = world.tally.peak_bytes, _memory()
        links = sum(len(node.core.links.connected()) for node in world.running() if node.core is not None)
        links_per_node = links / max(1, len(world.running()))
        followed = sum(sent[kind] for kind in ANTI_ENTROPY)
        self.progress("waiting for a crash to be detected")
        return OverlayReport(
            nodes=options.nodes,
            seed=options.seed,
            loss=options.network.loss,
            met_s=met_s,
            converged_rounds=rounds,
            detection_s=self._detect(),
            false_deaths=len(world.tally.false_deaths),
            bytes_per_node_per_s=sent.total() * per_node,
            peak_bytes=peak,
            bytes_per_change=followed / (self._changes * links_per_node) if self._changes else None,
            memory_bytes_per_node=(memory - self.memory_before) // options.nodes,
            links_per_node=links_per_node,
            frames=world.tally.frames,
            simulated_s=world.now,
            bytes_by_kind={kind: size * per_node for kind, size in sent.most_common() if size > 0},
        )

    def meet(self) -> float | None:
        world = self.world
        for number in range(world.options.nodes):
            self._run_node(number)
        large = world.options.nodes > world.options.full_mesh
        together = world.well_connected if large else world.acquainted
        return world.now if world.run_until(together, MEET_S) else None

    def converge(self) -> float | None:
        world, began = self.world, self.world.now
        for number in range(world.options.nodes):
            self._fill(number)
        if not world.run_until(world.neighbours_converged, world.now + CONVERGE_S):
            return None
        return (world.now - began) / world.options.timing.heartbeat_s

    def _go_on(self) -> None:
        """The steady part, a second at a time: nodes come and go, caches change."""
        world, workload = self.world, self.workload
        per_second = world.options.nodes * workload.churn_per_hour / 3600.0
        owed = changes = 0.0
        end = world.now + workload.steady_s
        while world.now < end:
            owed += per_second
            changes += workload.changes_per_s
            while owed >= 1.0:
                owed -= 1.0
                self._replace_one()
            while changes >= 1.0:
                changes -= 1.0
                for node in world.running():
                    world.after(world.rng.random(), partial(self._change, node))
            world.run(1.0)

    def _replace_one(self) -> None:
        """A node crashes and is started anew a while later, cold."""
        world = self.world
        number = world.rng.choice(world.running()).number
        world.crash(number)
        world.after(world.rng.uniform(5.0, 60.0), lambda: self._start(number))

    def _start(self, number: int) -> None:
        self._run_node(number)
        self._fill(number)

    def _fill(self, number: int) -> None:
        self._cached[number] = deque(self._fresh(self.workload.blocks))
        self.world.store(number, self._cached[number])

    def _run_node(self, number: int) -> None:
        self.world.start(number)
        self.world.report_load(number, IDLE)

    def _change(self, node: SimNode) -> None:
        """The oldest block makes room for a new one."""
        cached = self._cached[node.number]
        if node.core is not None and cached:
            self._changes += 2
            new = self._fresh(1)
            cached.extend(new)
            self.world.remove(node.number, [cached.popleft()])
            self.world.store(node.number, new)

    def _detect(self) -> float | None:
        world = self.world
        victim = world.rng.choice(world.running())
        neighbours = world.neighbours(victim.number)
        world.crash(victim.number)
        crashed_at = world.now
        if not world.run_until(
            lambda: all(world.state(each, victim.number) is PeerState.DEAD for each in neighbours),
            world.now + DETECT_S,
        ):
            return None
        return world.now - crashed_at

    def _fresh(self, count: int) -> list[int]:
        first = self._next_block
        self._next_block += count
        return [(block + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1 for block in range(first, first + count)]


def _memory() -> int:
    """The most memory this process has used so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
