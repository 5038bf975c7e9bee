"""A mesh of real cores under a virtual clock: the same seed gives the same run, event for event."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from typing import TypeAlias

from overlay.core.actions import Action, Close, Dial, Emit, Persist, Send, SetTimer
from overlay.core.core import Core
from overlay.core.events import (
    DialFailed,
    Event,
    Leave,
    LinkDown,
    LinkId,
    LinkUp,
    LocalBlocks,
    LocalCleared,
    MessageReceived,
    Started,
    TimerFired,
)
from overlay.core.messages import Bye, Hello, Message
from overlay.core.options import CoreOptions
from overlay.core.types import Address, BlockHash, NodeId
from overlay.core.views import MemberChanged, PeerState
from overlay.sim.network import Network
from overlay.sim.parts import Connection, SimNode, Tally, WorldOptions, make_node
from overlay.sim.signer import SimSigner
from overlay.sim.wire_size import wire_size

MODEL = b"simulated model"
EPOCH_MS = 1_800_000_000_000


class World:
    """Simulated nodes, connections and time."""

    def __init__(self, options: WorldOptions) -> None:
        self.options = options
        self.now = 0.0
        self.rng = random.Random(options.seed)
        self.network = Network(options.network, random.Random(options.seed + 1))
        self.nodes = [make_node(number) for number in range(options.nodes)]
        self.tally = Tally(bytes_sent=[0] * options.nodes, second=[(0, 0)] * options.nodes)
        self.trace: list[str] = []
        self.clock_ms = EPOCH_MS
        self.tamper: dict[int, Tamper] = {}
        self._numbers = {node.node_id: node.number for node in self.nodes}
        self._by_address = {node.address: node for node in self.nodes}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._next_link = 0
        self._disturbed_at = float("-inf")
        self._sized: tuple[Message | None, int] = (None, 0)

    # -- time -------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Lets virtual time pass."""
        end = self.now + seconds
        self.run_until(lambda: False, end)

    def run_until(self, condition: Callable[[], bool], deadline: float, every: float = 0.25) -> bool:
        """Runs until `condition` holds, looking each `every` seconds; False past the deadline."""
        look_at = self.now
        while True:
            if self.now >= look_at:
                if condition():
                    return True
                look_at = self.now + every
            stop = min(look_at, deadline)
            queue = self._queue
            while queue and queue[0][0] <= stop:
                self.now, _, task = heapq.heappop(queue)
                task()
            self.now = stop
            if stop >= deadline:
                return condition()

    def after(self, seconds: float, task: Callable[[], None]) -> None:
        """Has something done later in virtual time."""
        self._later(seconds, task)

    def _later(self, delay: float, task: Callable[[], None]) -> None:
        self._at(self.now + delay, task)

    def _at(self, when: float, task: Callable[[], None]) -> None:
        """Tasks of the same time are done in the order they were given."""
        self._sequence += 1
        heapq.heappush(self._queue, (when, self._sequence, task))

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
        delay = self.network.options.tcp_timeout_s if silently else 0.0
        for connection, end in list(node.links.values()):
            connection.open[end] = False
            self._later(delay + self.network.latency(), lambda c=connection, e=end: self._break(c, 1 - e))  # type: ignore[misc]  # mypy can't infer a lambda's defaults
        node.links.clear()

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
        runs = node.runs
        self._later(seconds, lambda: self._resume(node, runs))

    def partition(self, groups: list[list[int]]) -> None:
        """Splits the network; streams across the cut break by timeout."""
        self.network.partition(groups)
        self._cut_off()

    def cut(self, source: int, target: int) -> None:
        """Cuts one direction between two nodes."""
        self.network.cut(source, target)
        self._cut_off()

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
        actions = core.handle(self.now, event)
        if self.options.history:
            self._remember(node, core)
        for action in actions:
            if self.options.trace:
                self.trace.append(f"{self.now:.6f} n{node.number} {action}")
            self._perform(node, action)

    def _remember(self, node: SimNode, core: Core) -> None:
        at = (core.own.epoch, core.own.version)
        if at != node.last_seen:
            node.last_seen = at
            node.history[at] = frozenset(core.own.hashes().tolist())

    def _perform(self, node: SimNode, action: Action) -> None:
        if isinstance(action, Send):
            tamper = self.tamper.get(node.number)
            for message in (action.message,) if tamper is None else tamper(action.message):
                self._send(node, action.link, message)
            return
        match action:
            case SetTimer(at):
                node.timer += 1
                timer = node.timer
                self._later(max(0.0, at - self.now), lambda: self._fire(node, timer))
            case Dial(address, node_id):
                self._dial(node, address, node_id)
            case Close(link, _):
                self._close(node, link)
            case Persist(key, value):
                node.disk[key] = value
            case Emit(MemberChanged(peer, PeerState.DEAD)):
                self._note_death(node, self.nodes[self._numbers[peer]])
            case _:
                pass

    def _fire(self, node: SimNode, timer: int) -> None:
        if node.timer == timer:
            self._hand_in(node, TimerFired())

    def _send(self, node: SimNode, link: LinkId, message: Message) -> None:
        known = node.links.get(link)
        if known is None:
            return
        connection, end = known
        target, target_link = connection.ends[1 - end]
        self.tally.frames += 1
        if self.options.count_bytes:
            self._count(node, message)
        reliable = isinstance(message, RELIABLE)
        for latency in [self.network.latency()] if reliable else self.network.fates():
            arrival = max(self.now + latency, connection.hello_arrival[end])
            if reliable or not self.network.reordered():
                arrival = max(arrival, connection.last_arrival[end])
                connection.last_arrival[end] = arrival
            if isinstance(message, Hello):
                connection.hello_arrival[end] = arrival
            self._at(arrival, lambda: self._arrive(node.number, self.nodes[target], target_link, message))

    def _count(self, node: SimNode, message: Message) -> None:
        if message is not self._sized[0]:
            self._sized = (message, wire_size(message))
        tally, size = self.tally, self._sized[1]
        tally.bytes_sent[node.number] += size
        tally.kinds[type(message).__name__] += size
        second, sent = tally.second[node.number]
        sent = sent + size if second == int(self.now) else size
        tally.second[node.number] = (int(self.now), sent)
        tally.peak_bytes = max(tally.peak_bytes, sent)

    def _arrive(self, source: int, target: SimNode, link: LinkId, message: Message) -> None:
        known = target.links.get(link)
        if known is None:
            return
        if self.network.passes(source, target.number):
            self._hand_in(target, MessageReceived(link, message))
        elif isinstance(message, Hello):
            self._break(known[0], 0)
            self._break(known[0], 1)

    def _dial(self, node: SimNode, address: Address, node_id: NodeId | None) -> None:
        target = self._by_address.get(address)
        runs = node.runs
        there = self.network.latency() * 2

        def answer() -> None:
            if node.core is None or node.runs != runs:
                return
            reachable = target is not None and (
                self.network.passes(node.number, target.number)
                and self.network.passes(target.number, node.number)
            )
            if target is None or (reachable and target.core is None):
                self._hand_in(node, DialFailed(address, node_id, "connection refused"))
            elif not reachable or target.paused or self.network.handshake_fails():
                wait = self.network.options.dial_timeout_s
                self._later(wait, lambda: self._fail_dial(node, runs, address, node_id))
            elif node_id is not None and target.node_id != node_id:
                self._hand_in(node, DialFailed(address, node_id, "another node answered"))
            else:
                self._connect(node, target, address)

        self._later(there, answer)

    def _fail_dial(self, node: SimNode, runs: int, address: Address, node_id: NodeId | None) -> None:
        if node.runs == runs:
            self._hand_in(node, DialFailed(address, node_id, "no answer"))

    def _connect(self, dialler: SimNode, acceptor: SimNode, address: Address) -> None:
        first, second = LinkId(self._next_link), LinkId(self._next_link + 1)
        self._next_link += 2
        connection = Connection(((dialler.number, first), (acceptor.number, second)))
        connection.open = [True, True]
        dialler.links[first] = (connection, 0)
        acceptor.links[second] = (connection, 1)
        self._hand_in(acceptor, LinkUp(second, dialler.node_id))
        self._hand_in(dialler, LinkUp(first, acceptor.node_id, address))

    def _close(self, node: SimNode, link: LinkId) -> None:
        known = node.links.pop(link, None)
        if known is None:
            return
        connection, end = known
        connection.open[end] = False
        after = max(connection.last_arrival[end], self.now + self.network.options.latency_s[1])
        self._at(after, lambda: self._break(connection, 1 - end))

    def _break(self, connection: Connection, end: int) -> None:
        """One end notices that its stream is gone."""
        number, link = connection.ends[end]
        node = self.nodes[number]
        if connection.open[end] and link in node.links:
            connection.open[end] = False
            del node.links[link]
            self._hand_in(node, LinkDown(link, "broken"))

    def _cut_off(self) -> None:
        self._disturbed_at = self.now
        connections = {
            id(connection): connection for node in self.nodes for connection, _ in node.links.values()
        }
        for connection in connections.values():
            if not self._passes(connection):
                wait = self.network.options.tcp_timeout_s
                self._later(wait, lambda c=connection: self._time_out(c))  # type: ignore[misc]  # as above

    def _passes(self, connection: Connection) -> bool:
        (first, _), (second, _) = connection.ends
        return self.network.passes(first, second) and self.network.passes(second, first)

    def _time_out(self, connection: Connection) -> None:
        if not self._passes(connection):
            self._break(connection, 0)
            self._break(connection, 1)

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
        entry = (self.now, observer.number, subject.number)
        self.tally.deaths.append(entry)
        settled = self.now - max(observer.disturbed_at, subject.disturbed_at, self._disturbed_at)
        if observer.healthy and subject.healthy and self.network.whole and settled > SETTLING_S:
            self.tally.false_deaths.append(entry)


Tamper: TypeAlias = Callable[[Message], Iterable[Message]]
"""What a hostile node sends instead of what its core would."""

RELIABLE = (Hello, Bye)
"""The first and last frames of a stream are lost only with the stream."""

SETTLING_S = 40.0
"""A node counts as healthy again this long after what was done to it: the longest suspicion."""
