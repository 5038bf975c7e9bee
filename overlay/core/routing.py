"""Which node answers a request: a pure function of what this node knows, with its reasons.

The estimate every policy is shown is the time to first token: network round trip, plus the prefill
queued ahead, plus the prompt tokens not cached there at that node's own measured rate.

`cost` adds what the choice costs others. Prefill that a cached prefix would have saved delays whoever
comes next by as long as it takes, if the mesh is busy, and nobody if it is idle; so it counts once more,
times the share of nodes that are busy. Without this every node, to spare its own request a short wait,
computes prefixes that a peer has, and all wait longer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from overlay.core.types import BlockHash, Load, NodeId, short_id

NEAR_TIE_FRACTION = 0.05
"""Estimates this close to the best are equal: the measurements behind them are no better."""

NEAR_TIE_SECONDS = 0.003
"""Absolute part of a near-tie, about the noise of one RPC between two Python processes."""


class UnknownPolicyError(ValueError):
    """No routing policy has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown routing policy {name!r}; choose one of {', '.join(POLICIES)}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What routing may know of a request: its length, its first block, and a serial number."""

    tokens: int
    first_block: BlockHash | None = None
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node that could answer; `excluded` says why it can't be chosen, empty when it can."""

    node_id: NodeId
    load: Load
    claimed_tokens: int = 0  # leading prompt tokens that it says it has cached
    rtt_s: float = 0.0
    reserved_tokens: int = 0  # uncached prompt tokens sent there that its load doesn't cover yet
    trust: float = 1.0  # how far its claims are believed, from 0 to 1
    is_self: bool = False
    excluded: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A candidate's expected time to first token, in seconds, by its parts."""

    node_id: NodeId
    is_self: bool
    claimed_tokens: int
    cached_tokens: int  # as far as the claim is believed
    uncached_tokens: int
    rtt_s: float
    queue_s: float
    prefill_s: float
    burden_s: float  # what this prefill is expected to cost later requests
    excluded: str

    @property
    def total_s(self) -> float:
        """The expected time to first token."""
        return self.rtt_s + self.queue_s + self.prefill_s

    @property
    def cost_s(self) -> float:
        """What the policy `cost` minimises."""
        return self.total_s + self.burden_s


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen node, why, and what every candidate was expected to take (best first)."""

    policy: str
    target: NodeId
    reason: str
    estimates: tuple[Estimate, ...]

    @property
    def chosen(self) -> Estimate:
        """The estimate for the chosen node."""
        return next(estimate for estimate in self.estimates if estimate.node_id == self.target)


def pressure(candidates: Sequence[Candidate]) -> float:
    """The share of nodes that have work, from 0 (an idle mesh) to 1."""
    loads = [(candidate.load, candidate.reserved_tokens) for candidate in candidates]
    busy = sum(bool(load.running or load.waiting or reserved) for load, reserved in loads)
    return busy / len(loads)


def estimate(prompt: Prompt, candidate: Candidate, pressure: float = 0.0) -> Estimate:
    """The expected time to first token of `prompt` on `candidate`, and its burden under `pressure`."""
    load = candidate.load
    claimed = min(candidate.claimed_tokens, max(prompt.tokens - 1, 0))
    cached = round(claimed * candidate.trust)
    uncached = prompt.tokens - cached
    ahead = load.queued_prefill_tokens + candidate.reserved_tokens
    prefill_s = _prefill_seconds(uncached, load)
    return Estimate(
        node_id=candidate.node_id,
        is_self=candidate.is_self,
        claimed_tokens=claimed,
        cached_tokens=cached,
        uncached_tokens=uncached,
        rtt_s=candidate.rtt_s,
        queue_s=_prefill_seconds(ahead, load),
        prefill_s=prefill_s,
        burden_s=pressure * prefill_s,
        excluded=candidate.excluded,
    )


def _prefill_seconds(tokens: int, load: Load) -> float:
    """Seconds to prefill `tokens`; every step of a chunked prefill also decodes what runs."""
    seconds = tokens * load.seconds_per_prefill_token
    if load.running and load.prefill_tokens_per_step:
        seconds += tokens / load.prefill_tokens_per_step * load.seconds_per_decode_step
    return seconds


def choose(policy: str, prompt: Prompt, candidates: Sequence[Candidate], rng: random.Random) -> Decision:
    """Picks a node by the named policy.

    The caller always lists itself; when every candidate is excluded, itself is the choice, since
    local execution is always possible. Raises UnknownPolicyError.
    """
    if policy not in POLICIES:
        raise UnknownPolicyError(policy)
    share = pressure(candidates)
    estimates = sorted(
        (estimate(prompt, candidate, share) for candidate in candidates),
        key=lambda e: (bool(e.excluded), e.cost_s, not e.is_self, e.node_id),
    )
    own = next(e for e in estimates if e.is_self)
    open_to = [e for e in estimates if not e.excluded]
    if not open_to:
        return Decision(policy, own.node_id, "no node is free: queued here", tuple(estimates))
    if len(open_to) == 1:
        only = open_to[0]
        reason = "the only node" if len(estimates) == 1 else f"the only node free: {_name(only)}"
        return Decision(policy, only.node_id, reason, tuple(estimates))
    loads = {candidate.node_id: candidate for candidate in candidates}
    chosen, reason = POLICIES[policy](prompt, open_to, loads, rng)
    return Decision(policy, chosen.node_id, reason, tuple(estimates))


Loads = dict[NodeId, Candidate]
Policy = Callable[[Prompt, list[Estimate], Loads, random.Random], tuple[Estimate, str]]


def _cost(
    prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random
) -> tuple[Estimate, str]:
    best = estimates[0].cost_s
    near = [e for e in estimates if e.cost_s <= best * (1 + NEAR_TIE_FRACTION) + NEAR_TIE_SECONDS]
    chosen = rng.choice(near)
    seconds = f"{chosen.total_s * 1000:.0f} ms expected"
    if len(near) > 1:
        return chosen, f"{seconds}, drawn from {len(near)} near-equals"
    other = estimates[1]
    instead = f"{_name(other)} would take {other.total_s * 1000:.0f} ms"
    if other.total_s < chosen.total_s:
        instead += " but compute again what is cached here"
    return chosen, f"{seconds}; {instead}"


def _longest_prefix(
    prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random
) -> tuple[Estimate, str]:
    longest = max(e.cached_tokens for e in estimates)
    tied = [e for e in estimates if e.cached_tokens == longest]
    chosen = next((e for e in tied if e.is_self), None) or rng.choice(tied)
    return chosen, f"longest cached prefix: {longest} of {prompt.tokens} tokens"


def _least_loaded(
    prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random
) -> tuple[Estimate, str]:
    def work(e: Estimate) -> tuple[float, int]:
        load = loads[e.node_id].load
        return e.queue_s, load.running + load.waiting

    least = min(work(e) for e in estimates)
    chosen = rng.choice([e for e in estimates if work(e) == least])
    return chosen, f"least loaded: {least[0] * 1000:.0f} ms queued, {least[1]} requests"


def _random(
    prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random
) -> tuple[Estimate, str]:
    return rng.choice(sorted(estimates, key=lambda e: e.node_id)), "drawn at random"


def _round_robin(
    prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random
) -> tuple[Estimate, str]:
    turn = prompt.sequence % len(estimates)
    return sorted(estimates, key=lambda e: e.node_id)[turn], f"turn {turn + 1} of {len(estimates)}"


def _consistent_hash(
    prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random
) -> tuple[Estimate, str]:
    """Rendezvous hashing (Thaler and Ravishankar, 1998) of the first block."""
    key = (prompt.first_block or 0).to_bytes(8, "little")
    chosen = max(estimates, key=lambda e: blake2b(key + e.node_id.encode(), digest_size=8).digest())
    return chosen, "first block's rendezvous hash"


def _local(
    prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random
) -> tuple[Estimate, str]:
    own = next((e for e in estimates if e.is_self), None)
    if own is None:
        return estimates[0], "this node is full"
    return own, "always here"


def _name(e: Estimate) -> str:
    return "this one" if e.is_self else short_id(e.node_id)


POLICIES: dict[str, Policy] = {
    "cost": _cost,
    "longest-prefix": _longest_prefix,
    "least-loaded": _least_loaded,
    "random": _random,
    "round-robin": _round_robin,
    "consistent-hash": _consistent_hash,
    "local": _local,
}
"""Every routing policy by name; the first is the default."""

DEFAULT_POLICY = next(iter(POLICIES))
