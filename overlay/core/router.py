"""Gathers what this node knows of every candidate and asks `choose`; keeps the short-lived part of it.

Short-lived: work just sent that no load report covers yet, BUSY leases, quarantines, and how far each
peer's claims are believed. Nothing of it is gossiped. Times are one monotonic clock, in seconds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from overlay.core.demand import Demand
from overlay.core.outlook import HORIZON_S, Outlook
from overlay.core.quarantine import Quarantine
from overlay.core.routing import Candidate, Decision, Prompt, choose, prefill_seconds
from overlay.core.trust import Trust
from overlay.core.types import BlockHash, Load, NodeId
from overlay.core.views import PeerView

REPORT_SECONDS = 0.1
"""How often a load that changes is told."""

SHORTEST_LEASE_SECONDS = 0.05
LONGEST_LEASE_SECONDS = 5.0
"""A peer can't talk itself out of the mesh for longer than this with one BUSY."""


class Hearsay(Protocol):
    """What the router asks of the overlay."""

    @property
    def node_id(self) -> NodeId: ...

    def match(self, hashes: Sequence[BlockHash]) -> Mapping[NodeId, int]:
        """Leading blocks of a prompt that each peer is believed to have cached."""

    def peers(self) -> tuple[PeerView, ...]: ...

    def own_load(self) -> Load: ...

    def is_reachable(self, node_id: NodeId) -> bool:
        """Whether a peer can be dialled for requests from here."""


@dataclass(frozen=True, slots=True)
class Query:
    """A prompt as the router sees it: its length and blocks in tokens, and how much is cached here."""

    tokens: int
    hashes: Sequence[BlockHash]
    block_size: int
    own_cached_tokens: int

    def fits(self, load: Load) -> bool:
        """Whether the node's whole KV cache holds the prompt and one token more; 0 blocks are unknown."""
        return not load.kv_blocks_total or self.tokens < load.kv_blocks_total * self.block_size


@dataclass(frozen=True, slots=True)
class _Lease:
    """A BUSY: it ends with time, or when the peer reports after it that it accepts again."""

    until: float
    reported: tuple[int, int]


class Attempt:
    """One request sent to a peer, from the choice to its end; what it shows of the peer is learned here."""

    def __init__(
        self, router: Router, node_id: NodeId, tokens: int, claimed_tokens: int, decode_step_s: float
    ) -> None:
        self.decode_step_s = decode_step_s
        """How long the peer's steps took, by its last report."""
        self._router = router
        self._node_id = node_id
        self._tokens = tokens
        self._claimed_tokens = claimed_tokens
        self._relies = claimed_tokens > 0
        router.reserve(node_id, tokens)
        router.quarantine.began(node_id)
        if self._relies:
            router.trust.began(node_id)

    def accepted(self) -> None:
        """The peer's own load covers the request from now on."""
        self._router.reserve(self._node_id, -self._tokens)
        self._tokens = 0

    def answered(self, cached_tokens: int, now: float) -> None:
        """The first token came, of a prompt with so many tokens cached there."""
        self._router.quarantine.succeeded(self._node_id)
        self._verify()
        self._router.trust.learned(self._node_id, self._claimed_tokens, cached_tokens, now)

    def busy(self, now: float, retry_after_s: float) -> None:
        """The peer won't take it now."""
        self._router.quarantine.succeeded(self._node_id)
        self._router.lease(self._node_id, now, retry_after_s)

    def failed(self, now: float) -> None:
        """The peer did not answer, or stopped."""
        self._router.quarantine.failed(self._node_id, now)

    def close(self) -> None:
        """However it ended; says nothing of the peer by itself."""
        self.accepted()
        self._verify()
        self._router.quarantine.abandoned(self._node_id)

    def _verify(self) -> None:
        if self._relies:
            self._relies = False
            self._router.trust.ended(self._node_id)


class Router:
    """Routing decisions of one entry node."""

    def __init__(self, hearsay: Hearsay, model: bytes, policy: str, rng: random.Random) -> None:
        self.policy = policy
        self.quarantine = Quarantine()
        self.trust = Trust()
        self.outlook = Outlook()
        self.demand = Demand(HORIZON_S)
        self._hearsay = hearsay
        self._model = model
        self._rng = rng
        self._reserved: dict[NodeId, int] = {}
        self._leases: dict[NodeId, _Lease] = {}
        self._sequence = 0

    def decide(
        self,
        query: Query,
        now: float,
        *,
        policy: str = "",
        avoid: Mapping[NodeId, str] | None = None,
        learn: bool = True,
    ) -> Decision:
        """Where a request goes now; `avoid` excludes nodes with a reason each.

        From real requests the router learns what is asked for and how busy everyone is when it is; a
        question asked out of curiosity must not `learn`. Raises UnknownPolicyError.
        """
        first = query.hashes[0] if query.hashes else None
        candidates = self._candidates(query, now, avoid or {})
        if learn:
            self._sample(candidates, now)
        prompt = Prompt(
            query.tokens,
            first,
            self._sequence,
            self.outlook.usual_tokens,
            self.demand.follow_ups,
            self.outlook.utilisation,
            self._unseen(candidates),
        )
        decision = choose(policy or self.policy, prompt, candidates, self._rng)
        if learn:
            self._sequence += 1
            self.demand.asked(query.hashes, now)
            self.outlook.asked(decision.chosen.uncached_tokens)
        return decision

    def attempt(self, decision: Decision) -> Attempt:
        """Carries a decision for a peer out: the caller sends the request and reports on the attempt."""
        chosen, load = decision.chosen, self._load_of(decision.target)
        step_s = load.seconds_per_decode_step if load else 0.0
        return Attempt(self, decision.target, chosen.uncached_tokens, chosen.claimed_tokens, step_s)

    def reserve(self, node_id: NodeId, tokens: int) -> None:
        """Adds to (or takes from) the prefill that a peer's next load report will show."""
        left = self._reserved.get(node_id, 0) + tokens
        if left > 0:
            self._reserved[node_id] = left
        else:
            self._reserved.pop(node_id, None)

    def lease(self, node_id: NodeId, now: float, retry_after_s: float) -> None:
        """Leaves a peer alone for as long as it asked, within bounds."""
        load = self._load_of(node_id)
        seconds = min(max(retry_after_s, SHORTEST_LEASE_SECONDS), LONGEST_LEASE_SECONDS)
        self._leases[node_id] = _Lease(now + seconds, _reported(load))

    def forget(self, node_id: NodeId) -> None:
        """The peer left the mesh."""
        self._leases.pop(node_id, None)
        self.quarantine.forget(node_id)
        self.trust.forget(node_id)
        self.outlook.forget(node_id)

    def _load_of(self, node_id: NodeId) -> Load | None:
        return next((peer.load for peer in self._hearsay.peers() if peer.node_id == node_id), None)

    def _sample(self, candidates: Sequence[Candidate], now: float) -> None:
        """Notes how busy every node is at the moment of a request."""
        outlook, weight, busy = self.outlook, self.outlook.weigh(now), 0
        for candidate in candidates:
            ahead = candidate.load.queued_prefill_tokens + candidate.reserved_tokens
            wait_s = prefill_seconds(ahead + outlook.usual_tokens, candidate.load)
            outlook.sampled(candidate.node_id, weight, wait_s)
            busy += ahead > 0
        outlook.busy(weight, busy / len(candidates))

    def _unseen(self, candidates: Sequence[Candidate]) -> float:
        """Requests that the mesh places before loads show them, if peers are asked as often as here."""
        rtt_s = sum(candidate.rtt_s for candidate in candidates) / len(candidates)
        return self.outlook.expected(REPORT_SECONDS + rtt_s / 2) * len(candidates)

    def _candidates(self, query: Query, now: float, avoid: Mapping[NodeId, str]) -> list[Candidate]:
        own_id, matches = self._hearsay.node_id, self._hearsay.match(query.hashes)
        peers = self._hearsay.peers()
        nodes = len(peers) + 1
        own_blocks = max(query.own_cached_tokens // query.block_size, matches.get(own_id, 0))
        candidates = [
            Candidate(
                node_id=own_id,
                load=self._hearsay.own_load(),
                claimed_tokens=own_blocks * query.block_size,
                is_self=True,
                excluded=avoid.get(own_id, "") or self._own_exclusion(query),
                usual_wait_s=self.outlook.usual_wait_s(own_id),
                demand=self._demand(query, own_blocks, nodes, now),
            )
        ]
        for peer in peers:
            if peer.load is None:
                continue
            blocks = matches.get(peer.node_id, 0)
            candidates.append(
                Candidate(
                    node_id=peer.node_id,
                    load=peer.load,
                    claimed_tokens=blocks * query.block_size,
                    trust=self.trust.of(peer.node_id, now),
                    rtt_s=peer.rtt_s or 0.0,
                    reserved_tokens=self._reserved.get(peer.node_id, 0),
                    excluded=avoid.get(peer.node_id, "") or self._exclusion(peer, peer.load, query, now),
                    usual_wait_s=self.outlook.usual_wait_s(peer.node_id),
                    demand=self._demand(query, blocks, nodes, now),
                )
            )
        return candidates

    def _own_exclusion(self, query: Query) -> str:
        return "" if query.fits(self._hearsay.own_load()) else "its KV cache is too small for the prompt"

    def _demand(self, query: Query, blocks: int, nodes: int, now: float) -> float:
        """Requests expected for the leading `blocks` of a prompt, if peers are asked as often as here."""
        if not blocks:
            return 0.0
        return self.demand.of(query.hashes[min(blocks, len(query.hashes)) - 1], now) * nodes

    def _exclusion(self, peer: PeerView, load: Load, query: Query, now: float) -> str:
        """Why a peer can't be chosen; empty when it can."""
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
        if not query.fits(load):
            return "its KV cache is too small for the prompt"
        if not load.accepting:
            return "says it is full"
        if self._is_leased(peer.node_id, load, now):
            return "answered BUSY"
        if self.quarantine.remaining(peer.node_id, now) > 0:
            return "in quarantine after a failure"
        return ""

    def _is_leased(self, node_id: NodeId, load: Load, now: float) -> bool:
        lease = self._leases.get(node_id)
        if lease is None:
            return False
        if now >= lease.until or _reported(load) > lease.reported:
            del self._leases[node_id]
            return False
        return True


def _reported(load: Load | None) -> tuple[int, int]:
    return (load.epoch, load.sequence) if load else (0, 0)
