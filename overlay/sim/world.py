"""A mesh of real cores under a virtual clock: the same seed gives the same run, event for event."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TypeAlias

from overlay.core.actions import Action, Close, Dial, Emit, Persist, Send, SetTimer
from overlay.core.core import Core
from overlay.core.events import Event, Leave, LocalBlocks, LocalCleared, LocalLoad, Started, TimerFired
from overlay.core.messages import Message
from overlay.core.options import CoreOptions
from overlay.core.types import BlockHash, Load
from overlay.core.views import MemberChanged, PeerState
from overlay.sim.clock import Clock
from overlay.sim.network import Network
from overlay.sim.parts import SimNode, Tally, WorldOptions, make_node
from overlay.sim.signer import SimSigner
from overlay.sim.wires import Wires

MODEL = b"simulated model"
EPOCH_MS = 1_800_000_000_000


class World:
    """Simulated nodes, connections and time."""

    def __init__(self, options: WorldOptions) -> None:
        self.options = options
        self.clock = Clock()
        self.rng = random.Random(options.seed)
        self.network = Network(options.network, random.Random(options.seed + 1))
        self.nodes = [make_node(number) for number in range(options.nodes)]
        self.tally = Tally(options.nodes)
        self.trace: list[str] = []
        self.clock_ms = EPOCH_MS
        self.tamper: dict[int, Tamper] = {}
        self._numbers = {node.node_id: node.number for node in self.nodes}
        self._disturbed_at = float("-inf")
        by_address = {node.address: node for node in self.nodes}
        self.wires = Wires(
            self.clock, self.network, self.tally, by_address, self._hand_in, options.count_bytes
        )

    # -- time -------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock.now

    def run(self, seconds: float) -> None:
        """Lets virtual time pass."""
        self.clock.run_until(lambda: False, self.now + seconds, seconds)

    def run_until(self, condition: Callable[[], bool], deadline: float, every: float = 0.25) -> bool:
        """Runs until `condition` holds, looking each `every` seconds; False past the deadline."""
        return self.clock.run_until(condition, deadline, every)

    def after(self, seconds: float, task: Callable[[], None]) -> None:
        """Has something done later in virtual time."""
        self.clock.later(seconds, task)

    # -- what scripts do --------------------------------------------------------------------------

    def start(self, number: int, *, keep_disk: bool = True) -> None:
        """Starts a node that isn't running, with nothing cached."""
        node = self.nodes[number]
        if node.core is not None:
            raise ValueError(f"node {number} runs already")
        if not keep_disk:
            node.disk.clear()
        node.runs += 1
        node.blocks.clear()
        node.core = self._make_core(node)
        node.born = node.core.membership.incarnation
        self._disturb(node)
        self._hand_in(node, Started())

    def crash(self, number: int, *, silently: bool = False) -> None:
        """Ends a node at once; its peers' streams break at once too, or `silently` only by timeout."""
        node = self.nodes[number]
        node.core = None
        node.paused = False
        node.waiting.clear()
        node.timer += 1
        self._disturb(node)
        self.wires.cut_all(node, self.network.options.tcp_timeout_s if silently else 0.0)

    def leave(self, number: int) -> None:
        """Lets a node say goodbye, and ends it."""
        node = self.nodes[number]
        self._hand_in(node, Leave())
        self.crash(number)

    def pause(self, number: int, seconds: float) -> None:
        """Stops a node's process for a while; what happens to it meanwhile waits."""
        node = self.nodes[number]
        node.paused = True
        self._disturb(node)
        self.clock.later(seconds, self._resume, node, node.runs)

    def partition(self, groups: list[list[int]]) -> None:
        """Splits the network; streams across the cut break by timeout."""
        self.network.partition(groups)
        self._disturbed_at = self.now
        self.wires.time_out(self.nodes)

    def cut(self, source: int, target: int) -> None:
        """Cuts one direction between two nodes."""
        self.network.cut(source, target)
        self._disturbed_at = self.now
        self.wires.time_out(self.nodes)

    def heal(self) -> None:
        """Ends all cuts."""
        self.network.heal()
        self._disturbed_at = self.now

    def store(self, number: int, blocks: Iterable[int]) -> None:
        """A node's engine caches blocks."""
        node, new = self.nodes[number], [BlockHash(block) for block in blocks]
        node.blocks.update(new)
        self._hand_in(node, LocalBlocks(stored=new))

    def remove(self, number: int, blocks: Iterable[int]) -> None:
        """A node's engine evicts blocks."""
        node, old = self.nodes[number], [BlockHash(block) for block in blocks]
        node.blocks.difference_update(old)
        self._hand_in(node, LocalBlocks(removed=old))

    def clear(self, number: int) -> None:
        """A node's engine loses its cache."""
        self.nodes[number].blocks.clear()
        self._hand_in(self.nodes[number], LocalCleared())

    def report_load(self, number: int, load: Load) -> None:
        """A node's engine says how busy it is."""
        self._hand_in(self.nodes[number], LocalLoad(load))

    # -- what holds -------------------------------------------------------------------------------

    def running(self) -> list[SimNode]:
        return [node for node in self.nodes if node.core is not None]

    def state(self, observer: int, subject: int) -> PeerState | None:
        """What one running node believes of another; None when it knows nothing."""
        core = self.nodes[observer].core
        peer = core.table.get(self.nodes[subject].node_id) if core is not None else None
        return peer.state if peer is not None else None

    def acquainted(self) -> bool:
        """Whether every running node believes every other alive, and is connected to it."""
        running = self.running()
        return all(
            node.core is not None
            and len(node.core.links.connected()) >= len(running) - 1
            and all(
                other is node or self.state(node.number, other.number) is PeerState.ALIVE for other in running
            )
            for node in running
        )

    def converged(self) -> bool:
        """Whether every running honest node holds exactly the blocks of every other."""
        honest = [node for node in self.running() if node.number not in self.tamper]
        return all(
            self.replica(node.number, other.number) == other.blocks
            for node in honest
            for other in honest
            if other is not node
        )

    def neighbours_converged(self) -> bool:
        """Whether every running node holds what each connected peer has, judged by digests."""
        for node in self.running():
            core = node.core
            for peer in core.links.connected() if core is not None else ():
                origin = self.nodes[self._numbers[peer]].core
                replica = core.follower.replicas.get(peer) if core is not None else None
                if origin is None or replica is None:
                    return False
                own = origin.own
                if (replica.epoch, replica.version) != (
                    own.epoch,
                    own.version,
                ) or replica.digest != own.digest:
                    return False
                if len(own) != len(self.nodes[self._numbers[peer]].blocks):
                    return False
        return True

    def neighbours(self, number: int) -> list[int]:
        """The running nodes that are connected to one."""
        wanted = self.nodes[number].node_id
        return [
            node.number
            for node in self.running()
            if node.core is not None and node.core.links.active(wanted) is not None
        ]

    def well_connected(self) -> bool:
        """Whether every running node has as many streams as a large mesh should give it."""
        return all(
            node.core is not None and len(node.core.links.connected()) >= node.core.topology.fewest
            for node in self.running()
        )

    def in_one_piece(self) -> bool:
        """Whether streams lead, over others, from every running node to every other."""
        running = self.running()
        if not running:
            return True
        reached, edge = {running[0].number}, [running[0]]
        while edge:
            core = edge.pop().core
            for peer in core.links.connected() if core is not None else ():
                node = self.nodes[self._numbers[peer]]
                if node.number not in reached and node.core is not None:
                    reached.add(node.number)
                    edge.append(node)
        return len(reached) == len(running)

    def replica(self, holder: int, origin: int) -> set[int] | None:
        """What one node believes another has cached; None when it follows no such set."""
        core = self.nodes[holder].core
        replica = core.follower.replicas.get(self.nodes[origin].node_id) if core is not None else None
        return set(replica.hashes().tolist()) if replica is not None else None

    def wrong_replicas(self) -> list[str]:
        """Replicas that differ from what their origin had at the same (epoch, version): invariant 2."""
        wrong = []
        for node in self.running():
            if node.core is None or node.number in self.tamper:
                continue
            for origin_id, replica in node.core.follower.replicas.items():
                origin = self.nodes[self._numbers[origin_id]]
                if origin.number in self.tamper:
                    continue
                at = (replica.epoch, replica.version)
                truth = origin.history.get(at, frozenset()) if replica.version else frozenset()
                if set(replica.hashes().tolist()) != truth or len(truth) != replica.digest.count:
                    wrong.append(f"n{node.number} holds n{origin.number} wrongly at {at}")
        return wrong

    # -- inside -----------------------------------------------------------------------------------

    def _make_core(self, node: SimNode) -> Core:
        options = self.options
        seeds = [other.address for other in self.nodes[: options.seeds] if other is not node]
        core_options = CoreOptions(
            node_id=node.node_id,
            addresses=(node.address,),
            model=MODEL,
            model_name="simulated",
            digest_key=b"the digest key of the simulator",
            signer=SimSigner(node.node_id, node.runs),
            seeds=seeds,
            timing=options.timing,
            full_mesh=options.full_mesh,
            degree=options.degree,
            index_bytes=options.index_bytes,
        )
        rng = random.Random(f"{options.seed} {node.number} {node.runs}")
        return Core(core_options, rng, self.clock_ms + int(self.now * 1000), dict(node.disk))

    def _hand_in(self, node: SimNode, event: Event) -> None:
        core = node.core
        if core is None:
            return
        if node.paused:
            node.waiting.append(event)
            return
        actions = core.handle(self.clock.now, event)
        if self.options.history:
            self._remember(node, core)
        for action in actions:
            if self.options.trace:
                self.trace.append(f"{self.now:.6f} n{node.number} {action}")
            if type(action) is Send and not self.tamper:
                self.wires.send(node, action.link, action.message)
            else:
                self._perform(node, action)

    def _remember(self, node: SimNode, core: Core) -> None:
        at = (core.own.epoch, core.own.version)
        if at != node.last_seen:
            node.last_seen = at
            node.history[at] = frozenset(core.own.hashes().tolist())

    def _perform(self, node: SimNode, action: Action) -> None:
        match action:
            case Send(link, message):
                tamper = self.tamper.get(node.number)
                for each in (message,) if tamper is None else tamper(message):
                    self.wires.send(node, link, each)
            case SetTimer(at):
                node.timer += 1
                self.clock.at(max(at, self.now), self._fire, node, node.timer)
            case Dial(address, node_id):
                self.wires.dial(node, address, node_id)
            case Close(link, _):
                self.wires.close(node, link)
            case Persist(key, value):
                node.disk[key] = value
            case Emit(MemberChanged(peer, PeerState.DEAD)):
                self._note_death(node, self.nodes[self._numbers[peer]])
            case _:
                pass

    def _fire(self, node: SimNode, timer: int) -> None:
        if node.timer == timer:
            self._hand_in(node, TIMER_FIRED)

    def _resume(self, node: SimNode, runs: int) -> None:
        if node.runs != runs or node.core is None:
            return
        node.paused = False
        self._disturb(node)
        waiting, node.waiting = node.waiting, []
        for event in waiting:
            self._hand_in(node, event)

    def _disturb(self, node: SimNode) -> None:
        node.disturbed_at = self.now

    def _note_death(self, observer: SimNode, subject: SimNode) -> None:
        """Late news that a node which was restarted had died are true: they are of an earlier life."""
        entry = (self.now, observer.number, subject.number)
        self.tally.deaths.append(entry)
        peer = observer.core.table.get(subject.node_id) if observer.core is not None else None
        this_life = peer is None or peer.incarnation >= subject.born
        settled = self.now - max(observer.disturbed_at, subject.disturbed_at, self._disturbed_at)
        calm = self.network.whole and settled > SETTLING_S
        if observer.healthy and subject.healthy and this_life and calm:
            self.tally.false_deaths.append(entry)


Tamper: TypeAlias = Callable[[Message], Iterable[Message]]
"""What a hostile node sends instead of what its core would."""

TIMER_FIRED = TimerFired()

SETTLING_S = 40.0
"""A node counts as healthy again this long after what was done to it: the longest suspicion."""
