"""Gathers what this node knows of every candidate and asks `choose`; keeps the short-lived part of it.

Short-lived: reservations (work just sent that no load report covers yet), BUSY leases and quarantines.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from engine.block_hash import BlockHasher, Namespace
from engine.interface import BlockEvents
from node.quarantine import Quarantine
from overlay.core.routing import Candidate, Decision, Prompt, choose
from overlay.core.types import BlockHash, Load, NodeId
from overlay.core.views import PeerView

BUSY_LEASE_SECONDS = 1.0
"""How long a BUSY answer holds without a retry-after of its own."""

LONGEST_BUSY_LEASE_SECONDS = 5.0
"""A peer can't talk itself out of the mesh for longer than this with one answer."""


class Hearsay(Protocol):
    """What the router asks of the overlay."""

    @property
    def node_id(self) -> NodeId: ...

    def match(self, hashes: Sequence[BlockHash]) -> Mapping[NodeId, int]: ...

    def peers(self) -> tuple[PeerView, ...]: ...

    def own_load(self) -> Load: ...

    def is_reachable(self, node_id: NodeId) -> bool: ...


class OwnBlocks:
    """The hashes of the blocks this node's engine has cached."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def __len__(self) -> int:
        return len(self._hashes)

    def apply(self, events: BlockEvents) -> None:
        if events.cleared:
            self._hashes.clear()
        self._hashes.update(events.stored)
        self._hashes.difference_update(events.removed)

    def match(self, hashes: Iterable[int]) -> int:
        """How many leading blocks are cached here."""
        matched = 0
        for block_hash in hashes:
            if block_hash not in self._hashes:
                break
            matched += 1
        return matched


class Reservation:
    """Prefill work just sent to a node; released once that node's own load report covers it."""

    def __init__(self, owner: dict[NodeId, int], node_id: NodeId, tokens: int) -> None:
        self._owner = owner
        self._node_id = node_id
        self._tokens = tokens
        owner[node_id] = owner.get(node_id, 0) + tokens

    def release(self) -> None:
        """Safe to call again."""
        left = self._owner.get(self._node_id, 0) - self._tokens
        self._tokens = 0
        if left > 0:
            self._owner[self._node_id] = left
        else:
            self._owner.pop(self._node_id, None)


class Router:
    """Routing decisions of one entry node; times are its monotonic clock, in seconds."""

    def __init__(
        self,
        hearsay: Hearsay,
        blocks: OwnBlocks,
        hasher: BlockHasher,
        model: bytes,
        policy: str,
        rng: random.Random,
    ) -> None:
        self.policy = policy
        self.quarantine = Quarantine()
        self._hearsay = hearsay
        self._blocks = blocks
        self._hasher = hasher
        self._model = model
        self._rng = rng
        self._reserved: dict[NodeId, int] = {}
        self._busy_until: dict[NodeId, float] = {}
        self._sequence = 0

    def hashes(self, namespace: Namespace, token_ids: Sequence[int]) -> list[BlockHash]:
        return [BlockHash(value) for value in self._hasher.prefix(namespace, token_ids)]

    def decide(
        self,
        token_ids: Sequence[int],
        hashes: Sequence[BlockHash],
        now: float,
        *,
        policy: str = "",
        avoid: Mapping[NodeId, str] | None = None,
    ) -> Decision:
        """Where a request goes now; `avoid` excludes nodes with a reason each. Changes nothing."""
        prompt = Prompt(len(token_ids), hashes[0] if hashes else None, self._sequence)
        candidates = self._candidates(hashes, now, avoid or {})
        return choose(policy or self.policy, prompt, candidates, self._rng)

    def sent(self, decision: Decision) -> Reservation:
        """Counts a decision as carried out."""
        self._sequence += 1
        self.quarantine.began(decision.target)
        return Reservation(self._reserved, decision.target, decision.chosen.uncached_tokens)

    def busy(self, node_id: NodeId, now: float, retry_after_s: float = BUSY_LEASE_SECONDS) -> None:
        """The peer answered BUSY: a lease that ends by itself, or with a report that it accepts again."""
        self._busy_until[node_id] = now + min(max(retry_after_s, 0.05), LONGEST_BUSY_LEASE_SECONDS)
        self.quarantine.succeeded(node_id)

    def quarantined_s(self, node_id: NodeId, now: float) -> float:
        return self.quarantine.remaining(node_id, now)

    def forget(self, node_id: NodeId) -> None:
        """The peer left the mesh."""
        self._busy_until.pop(node_id, None)
        self.quarantine.forget(node_id)

    def _candidates(
        self, hashes: Sequence[BlockHash], now: float, avoid: Mapping[NodeId, str]
    ) -> list[Candidate]:
        own_id = self._hearsay.node_id
        size = self._hasher.block_size
        candidates = [
            Candidate(
                node_id=own_id,
                load=self._hearsay.own_load(),
                cached_tokens=self._blocks.match(hashes) * size,
                reserved_tokens=self._reserved.get(own_id, 0),
                is_self=True,
                excluded=avoid.get(own_id, ""),
            )
        ]
        matches = self._hearsay.match(hashes)
        for peer in self._hearsay.peers():
            if peer.load is None:
                continue
            candidates.append(
                Candidate(
                    node_id=peer.node_id,
                    load=peer.load,
                    cached_tokens=matches.get(peer.node_id, 0) * size,
                    rtt_s=peer.rtt_s or 0.0,
                    reserved_tokens=self._reserved.get(peer.node_id, 0),
                    excluded=avoid.get(peer.node_id, "") or self._exclusion(peer, peer.load, now),
                )
            )
        return candidates

    def _exclusion(self, peer: PeerView, load: Load, now: float) -> str:
        if peer.model != self._model:
            return "serves another model"
        if not peer.connected:
            return "not connected"
        if not self._hearsay.is_reachable(peer.node_id):
            return "can't be dialled from here"
        if load.draining:
            return "draining"
        if not load.seconds_per_prefill_token:
            return "has not told its speed yet"
        if now < self._busy_until.get(peer.node_id, 0.0):
            return "answered BUSY"
        if not load.accepting:
            return "says it is full"
        if self.quarantine.remaining(peer.node_id, now) > 0:
            return "in quarantine after a failure"
        return ""
