"""Whom to dial, where and when: with backoff and jitter, seeds for ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from overlay.core.limits import MAX_ADDRESSES_PER_NODE, MAX_MEMBERS
from overlay.core.outbox import Outbox
from overlay.core.timers import Timer, Timers
from overlay.core.timing import Timing
from overlay.core.types import Address, NodeId
from overlay.core.views import DialProblem

MAX_DIALS_AT_ONCE = 16
"""A TLS handshake costs 3 ms of processor time; more at once only slow each other down."""


@dataclass(slots=True, eq=False)
class Target:
    """A node, or an address whose node isn't known, that should be connected."""

    node_id: NodeId | None
    addresses: list[Address]
    permanent: bool
    since: float
    failures: int = 0
    cursor: int = 0
    in_flight: Address | None = None
    timer: Timer | None = None


@dataclass(slots=True, eq=False)
class Dialer:
    """Keeps trying every target that `satisfied` doesn't call connected.

    Addresses of a node are tried in turn; only when all have failed does the wait grow.
    """

    own_addresses: set[Address]
    rng: random.Random
    timing: Timing
    timers: Timers
    outbox: Outbox
    satisfied: Callable[[NodeId], bool]
    calm_s: float = 0.0
    """Wait between looks at a seed that leads to a connected peer, or did; set once a round."""
    _nodes: dict[NodeId, Target] = field(default_factory=dict)
    _seeds: dict[Address, Target] = field(default_factory=dict)
    _resolved: dict[Address, NodeId] = field(default_factory=dict)
    _selves: set[Address] = field(default_factory=set)
    _flying: list[Target] = field(default_factory=list)

    def seed(self, now: float, address: Address, *, permanent: bool) -> None:
        """Tries an address whose node isn't known; for ever when `permanent`."""
        target = self._seeds.get(address)
        if target is None:
            if len(self._seeds) >= MAX_MEMBERS:
                return
            self._seeds[address] = target = Target(None, [address], permanent, now)
            self._schedule(target, now)
        target.permanent = target.permanent or permanent

    def want(self, now: float, node_id: NodeId, addresses: tuple[Address, ...], delay: float = 0.0) -> None:
        """Tries a node at its addresses until it is connected or `drop`ped."""
        target = self._nodes.get(node_id)
        if target is None:
            if len(self._nodes) >= MAX_MEMBERS:
                return
            self._nodes[node_id] = target = Target(node_id, [], permanent=False, since=now)
        self._learn(target, addresses)
        if target.timer is None and target.in_flight is None:
            self._schedule(target, now + delay)

    def hurry(self, now: float, node_id: NodeId) -> None:
        """A node may be back: its next try comes soon, and the waits begin anew."""
        target = self._nodes.get(node_id)
        if target is not None and target.in_flight is None:
            target.failures = 0
            self._schedule(target, now + self._wait(self.timing.dial_first_s))

    def drop(self, node_id: NodeId) -> None:
        """Tries a node no more."""
        target = self._nodes.pop(node_id, None)
        if target is not None:
            self._cancel(target)
            self._land(target)

    def arrived(self, now: float, address: Address, peer: NodeId, *, is_self: bool) -> None:
        """A dial came through: `peer` answered at `address`."""
        for target in self._waiting_for(address):
            self._land(target)
            self._cancel(target)
            if target.node_id is None or target.node_id != peer:
                self._schedule(target, now + self._wait(max(self.calm_s, self.timing.dial_max_s)))
        if is_self:
            self._selves.add(address)
        elif address in self._seeds:
            self._resolved[address] = peer

    def failed(self, now: float, address: Address, reason: str) -> None:
        """A dial came to nothing."""
        for target in self._waiting_for(address):
            self._give_up(now, target, reason)

    def lost(self, now: float, peer: NodeId, lived_s: float) -> None:
        """The last stream to a peer ended: the peer and seeds that led to it are due again.

        Soon after a stream that lived, since the peer may be restarting; after one that didn't, with
        growing waits, since the peer may have refused it.
        """
        targets = [self._nodes.get(peer)]
        targets += [self._seeds.get(address) for address, node in self._resolved.items() if node == peer]
        for target in targets:
            if target is None or target.in_flight is not None:
                continue
            if lived_s >= self.timing.hello_s:
                target.failures = 0
            self._schedule(target, now + self._wait(self._backoff(target)))
            target.failures += 1

    def _waiting_for(self, address: Address) -> list[Target]:
        return [target for target in self._flying if target.in_flight == address]

    def _attempt(self, now: float, target: Target) -> None:
        target.timer = None
        if target.node_id is not None and self.satisfied(target.node_id):
            return
        if target.node_id is None and self._seed_is_connected(target.addresses[0]):
            if target.permanent:
                self._schedule(target, now + self._wait(max(self.calm_s, self.timing.dial_max_s)))
            else:
                self._unseed(target)
            return
        address = self._pick(target)
        if address is None:
            self._schedule(target, now + self._wait(max(self.calm_s, self.timing.dial_max_s)))
            return
        if len(self._flying) >= MAX_DIALS_AT_ONCE:
            self._schedule(target, now + self.rng.uniform(0.5, 1.0) * self.timing.dial_first_s)
            return
        target.in_flight = address
        self._flying.append(target)
        self.outbox.dial(address, target.node_id)
        timeout = self.timing.dial_timeout_s
        target.timer = self.timers.at(now + timeout, lambda at: self._give_up(at, target, "no answer"))

    def _unseed(self, target: Target) -> None:
        del self._seeds[target.addresses[0]]
        self._resolved.pop(target.addresses[0], None)

    def _seed_is_connected(self, address: Address) -> bool:
        node_id = self._resolved.get(address)
        return address in self._selves or (node_id is not None and self.satisfied(node_id))

    def _pick(self, target: Target) -> Address | None:
        """The next address in turn that isn't this node's own."""
        for _ in target.addresses:
            address = target.addresses[target.cursor % len(target.addresses)]
            target.cursor += 1
            known_own = target.node_id is not None and address in self.own_addresses
            if address not in self._selves and not known_own:
                return address
        return None

    def _give_up(self, now: float, target: Target, reason: str) -> None:
        address = target.in_flight
        self._land(target)
        self._cancel(target)
        target.failures += 1
        if address is not None and target.failures == len(target.addresses):
            self.outbox.emit(DialProblem(address, reason))
        hint = target.node_id is None and not target.permanent
        if hint and now - target.since > self.timing.candidate_s:
            self._unseed(target)
            return
        if target.failures % len(target.addresses):
            self._schedule(target, now)
            return
        self._schedule(target, now + self._wait(self._backoff(target)))

    def _backoff(self, target: Target) -> float:
        """Doubles each time that all addresses have failed."""
        rounds = target.failures // max(1, len(target.addresses))
        return min(self.timing.dial_first_s * 2.0 ** min(rounds, 16), self.timing.dial_max_s)

    def _wait(self, base: float) -> float:
        return base * self.rng.uniform(0.5, 1.0)

    def _land(self, target: Target) -> None:
        if target.in_flight is not None:
            target.in_flight = None
            self._flying.remove(target)

    def _schedule(self, target: Target, at: float) -> None:
        self._cancel(target)
        target.timer = self.timers.at(at, lambda now: self._attempt(now, target))

    def _cancel(self, target: Target) -> None:
        if target.timer is not None:
            target.timer.cancel()
            target.timer = None

    def _learn(self, target: Target, addresses: tuple[Address, ...]) -> None:
        """New addresses are tried first, the longest unheard of are forgotten."""
        news = [address for address in addresses if address not in target.addresses]
        target.addresses = (news + target.addresses)[:MAX_ADDRESSES_PER_NODE]
