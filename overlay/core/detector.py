"""The failure detector: probes, indirect probes, and how far to trust this node's own clock.

SWIM's probing with Lifeguard's local health multiplier (arXiv 1707.00788, section IV.A).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from overlay.core.links import Link, LinkTable
from overlay.core.members import MemberTable
from overlay.core.messages import Ack, Nack, Probe, ProbeRequest
from overlay.core.outbox import Outbox
from overlay.core.timers import Timer, Timers
from overlay.core.timing import Timing
from overlay.core.types import NodeId

MAX_PROBES_FOR_OTHERS = 256
"""Indirect probes in flight for others; more are refused with a Nack."""


FRESH_BEATS = 1.5
"""A peer silent for longer has missed a load report, and half a round to bring it."""


@dataclass(slots=True, eq=False)
class _Probe:
    """One question to a peer. `helpers` were asked to put it too; `nacked` tried in vain."""

    target: NodeId
    sent_at: float
    ping: bool
    timer: Timer | None = None
    helpers: set[NodeId] = field(default_factory=set)
    nacked: set[NodeId] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Detector:
    """Finds out which peers answer.

    `alive(now, peer, incarnation)` is called with each answer, `rtt(peer, seconds)` with each direct
    one's time, `failed(now, peer)` when neither the peer nor any helper answered.
    """

    table: MemberTable
    links: LinkTable
    timing: Timing
    timers: Timers
    outbox: Outbox
    rng: random.Random
    alive: Callable[[float, NodeId, int], None]
    rtt: Callable[[NodeId, float], None]
    failed: Callable[[float, NodeId], None]
    local_health: int = 0
    _sequence: int = 0
    _probes: dict[int, _Probe] = field(default_factory=dict)
    _for_others: dict[int, tuple[Link, int, NodeId]] = field(default_factory=dict)
    _rotation: list[NodeId] = field(default_factory=list)

    def beat(self, now: float, *, among_connected: bool) -> None:
        """Probes the next member in a random rotation (SWIM, section 4.3: bounds detection).

        Whoever has just been heard of needs no probe: the load reports are heartbeats too. In a mesh too
        large for everyone to be connected, each watches its neighbours only.
        """
        for _ in range(2):
            while self._rotation:
                peer = self.table.get(self._rotation.pop())
                if peer is None or not peer.present:
                    continue
                link = self.links.active(peer.node_id)
                if link is None and among_connected:
                    continue
                if link is not None and self._is_fresh(now, link):
                    self._adjust(-1)
                    continue
                self.probe(now, peer.node_id)
                return
            self._rotation = (
                self.links.connected()
                if among_connected
                else [peer.node_id for peer in self.table if peer.present]
            )
            self.rng.shuffle(self._rotation)

    def _is_fresh(self, now: float, link: Link) -> bool:
        silence = now - link.heard_at
        return silence < FRESH_BEATS * self.timing.heartbeat_s and now - link.measured_at < self.timing.rtt_s

    def probe(self, now: float, target: NodeId) -> None:
        """Asks a member whether it lives; through others at once when no stream leads to it."""
        link = self.links.active(target)
        probe = _Probe(target, now, ping=False)
        sequence = self._start(probe)
        if link is None:
            self._ask_others(now, sequence)
            return
        self.outbox.send(link.id, Probe(sequence))
        probe.timer = self.timers.at(now + self.patience(), lambda at: self._ask_others(at, sequence))

    def ping(self, now: float, link: Link) -> None:
        """Measures the round trip of a new stream; silence proves nothing."""
        probe = _Probe(link.peer, now, ping=True)
        sequence = self._start(probe)
        self.outbox.send(link.id, Probe(sequence))
        probe.timer = self.timers.at(now + self.timing.hello_s, lambda _: self._drop(sequence))

    def patience(self) -> float:
        """How long an answer may take."""
        return self.timing.ack_s * (self.local_health + 1)

    def lagged(self, lag_s: float) -> None:
        """This node was late itself: it takes back every open question, and waits longer for a while."""
        self._probes.clear()
        self._adjust(1 + int(lag_s / self.timing.heartbeat_s))

    def on_probe(self, link: Link, message: Probe, incarnation: int) -> None:
        self.outbox.send(link.id, Ack(message.sequence, incarnation))

    def on_probe_request(self, now: float, link: Link, message: ProbeRequest) -> None:
        """Probes for another; says so when the target doesn't answer in time."""
        target = self.links.active(message.target)
        if target is None or len(self._for_others) >= MAX_PROBES_FOR_OTHERS:
            self.outbox.send(link.id, Nack(message.sequence))
            return
        self._sequence += 1
        sequence = self._sequence
        self._for_others[sequence] = (link, message.sequence, message.target)
        self.outbox.send(target.id, Probe(sequence))
        self.timers.at(now + self.timing.ack_s * 0.8, lambda at: self._answer_in_vain(at, sequence))

    def on_ack(self, now: float, link: Link, message: Ack) -> None:
        """An answer to this node's question, or to one put for another."""
        asked = self._for_others.get(message.sequence)
        if asked is not None and asked[2] == link.peer:
            del self._for_others[message.sequence]
            self.outbox.send(asked[0].id, Ack(asked[1], message.incarnation))
            return
        probe = self._probes.get(message.sequence)
        if probe is None or (link.peer != probe.target and link.peer not in probe.helpers):
            return
        del self._probes[message.sequence]
        if probe.timer is not None:
            probe.timer.cancel()
        if link.peer == probe.target:
            link.measured_at = now
            self.rtt(probe.target, now - probe.sent_at)
        if not probe.ping:
            self._adjust(-1)
        self.alive(now, probe.target, message.incarnation)

    def on_nack(self, link: Link, message: Nack) -> None:
        probe = self._probes.get(message.sequence)
        if probe is not None and link.peer in probe.helpers:
            probe.nacked.add(link.peer)

    def _start(self, probe: _Probe) -> int:
        self._sequence += 1
        self._probes[self._sequence] = probe
        return self._sequence

    def _ask_others(self, now: float, sequence: int) -> None:
        probe = self._probes.get(sequence)
        if probe is None:
            return
        others = [peer for peer in self.links.connected() if peer != probe.target]
        for helper in self.rng.sample(others, min(self.timing.indirect_probes, len(others))):
            link = self.links.active(helper)
            if link is not None:
                probe.helpers.add(helper)
                self.outbox.send(link.id, ProbeRequest(sequence, probe.target))
        wait = self.patience() + self.timing.ack_s if probe.helpers else 0.0
        probe.timer = self.timers.at(now + wait, lambda at: self._give_up(at, sequence))

    def _give_up(self, now: float, sequence: int) -> None:
        """Helpers that sent no Nack make this node doubt itself, not the target (Lifeguard)."""
        probe = self._probes.pop(sequence, None)
        if probe is not None and not self._heard_since(probe):
            self._adjust(len(probe.helpers) - len(probe.nacked))
            self.failed(now, probe.target)

    def _heard_since(self, probe: _Probe) -> bool:
        """Any frame on the peer's own stream is as good as an answer."""
        link = self.links.active(probe.target)
        return link is not None and link.heard_at > probe.sent_at

    def _answer_in_vain(self, now: float, sequence: int) -> None:
        """Sends a Nack; a late Ack is still passed on for a while."""
        asked = self._for_others.get(sequence)
        if asked is not None:
            self.outbox.send(asked[0].id, Nack(asked[1]))
            self.timers.at(now + 2 * self.timing.ack_s, lambda _: self._forget(sequence))

    def _forget(self, sequence: int) -> None:
        self._for_others.pop(sequence, None)

    def _drop(self, sequence: int) -> None:
        self._probes.pop(sequence, None)

    def _adjust(self, by: int) -> None:
        self.local_health = min(max(0, self.local_health + by), self.timing.max_local_health)
