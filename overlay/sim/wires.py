"""The streams between simulated nodes, from dial to break, and what travels on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from overlay.core.events import DialFailed, Event, LinkDown, LinkId, LinkUp, MessageReceived
from overlay.core.messages import Bye, Hello, Message
from overlay.core.types import Address, NodeId
from overlay.sim.clock import Clock
from overlay.sim.network import Network
from overlay.sim.parts import End, SimNode, Tally
from overlay.sim.wire_size import wire_size

RELIABLE = (Hello, Bye)
"""The first and last frames of a stream are lost only with the stream."""


@dataclass(slots=True, eq=False)
class Wires:
    """Carries frames from one node to another; `hand_in(node, event)` tells a node what came of it."""

    clock: Clock
    network: Network
    tally: Tally
    by_address: dict[Address, SimNode]
    hand_in: Callable[[SimNode, Event], None]
    count_bytes: bool
    _next_link: int = 0
    _sized: tuple[Message | None, int] = field(default=(None, 0))

    # -- frames -----------------------------------------------------------------------------------

    def send(self, node: SimNode, link: LinkId, message: Message) -> None:
        """A frame leaves; it arrives once, or in a bad network never, twice, or out of order."""
        end = node.links.get(link)
        if end is None:
            return
        self.tally.frames += 1
        if self.count_bytes:
            self._count(node, message)
        clock, network = self.clock, self.network
        reliable = isinstance(message, RELIABLE)
        if network.calm or reliable:
            self._carry(end, message, clock.now + network.latency())
            return
        for latency in network.fates():
            arrival = clock.now + latency
            if network.reordered():
                clock.at(max(arrival, end.hello_arrival), self._arrive, end, message)
            else:
                self._carry(end, message, arrival)

    def _carry(self, end: End, message: Message, arrival: float) -> None:
        """In order."""
        if arrival < end.last_arrival:
            arrival = end.last_arrival
        else:
            end.last_arrival = arrival
        if isinstance(message, Hello):
            end.hello_arrival = arrival
        self.clock.at(arrival, self._arrive, end, message)

    def _count(self, node: SimNode, message: Message) -> None:
        """The same message often goes to many; its size is found out once."""
        if message is not self._sized[0]:
            self._sized = (message, wire_size(message))
        self.tally.sent(node.number, type(message), self._sized[1], self.clock.now)

    def _arrive(self, sender: End, message: Message) -> None:
        receiver = sender.other
        if not receiver.open:
            return
        network = self.network
        if network.whole or network.passes(sender.node.number, receiver.node.number):
            self.hand_in(receiver.node, MessageReceived(receiver.link, message))
        elif isinstance(message, Hello):
            self._break(receiver)
            self._break(sender)

    # -- dialling ---------------------------------------------------------------------------------

    def dial(self, node: SimNode, address: Address, node_id: NodeId | None) -> None:
        self.clock.later(2 * self.network.latency(), self._answer, node, node.runs, address, node_id)

    def _answer(self, node: SimNode, runs: int, address: Address, node_id: NodeId | None) -> None:
        if node.core is None or node.runs != runs:
            return
        target = self.by_address.get(address)
        reachable = target is not None and self._both_ways(node, target)
        if target is None or (reachable and target.core is None):
            self.hand_in(node, DialFailed(address, node_id, "connection refused"))
        elif not reachable or target.paused or self.network.handshake_fails():
            wait = self.network.options.dial_timeout_s
            self.clock.later(wait, self._fail, node, runs, address, node_id)
        elif node_id is not None and target.node_id != node_id:
            self.hand_in(node, DialFailed(address, node_id, "another node answered"))
        else:
            self._connect(node, target, address)

    def _fail(self, node: SimNode, runs: int, address: Address, node_id: NodeId | None) -> None:
        if node.runs == runs:
            self.hand_in(node, DialFailed(address, node_id, "no answer"))

    def _connect(self, dialler: SimNode, acceptor: SimNode, address: Address) -> None:
        first, second = LinkId(self._next_link), LinkId(self._next_link + 1)
        self._next_link += 2
        here, there = End(dialler, first), End(acceptor, second)
        here.other, there.other = there, here
        dialler.links[first], acceptor.links[second] = here, there
        self.hand_in(acceptor, LinkUp(second, dialler.node_id))
        self.hand_in(dialler, LinkUp(first, acceptor.node_id, address))

    # -- ends -------------------------------------------------------------------------------------

    def close(self, node: SimNode, link: LinkId) -> None:
        """One side is done; the other notices once what was sent has arrived."""
        end = node.links.pop(link, None)
        if end is not None:
            end.open = False
            after = max(end.last_arrival, self.clock.now + self.network.options.latency_s[1])
            self.clock.at(after, self._break, end.other)

    def cut_all(self, node: SimNode, delay_s: float) -> None:
        """A node is gone; its peers notice after `delay_s` and a little more."""
        for end in node.links.values():
            end.open = False
            self.clock.later(delay_s + self.network.latency(), self._break, end.other)
        node.links.clear()

    def time_out(self, nodes: list[SimNode]) -> None:
        """Streams that lead across a cut break in a while, unless it has healed by then."""
        wait = self.network.options.tcp_timeout_s
        for node in nodes:
            for end in node.links.values():
                if not self._both_ways(end.node, end.other.node):
                    self.clock.later(wait, self._time_out, end)

    def _time_out(self, end: End) -> None:
        if not self._both_ways(end.node, end.other.node):
            self._break(end)

    def _both_ways(self, first: SimNode, second: SimNode) -> bool:
        passes = self.network.passes
        return passes(first.number, second.number) and passes(second.number, first.number)

    def _break(self, end: End) -> None:
        """One end notices that its stream is gone."""
        if end.open:
            end.open = False
            del end.node.links[end.link]
            self.hand_in(end.node, LinkDown(end.link, "broken"))
