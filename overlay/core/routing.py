"""Which node answers a request: a pure function of what this node knows, with its reasons.

The estimate that every policy is shown is the time to first token: network round trip, plus the prefill
queued ahead, plus the prompt tokens not cached there, at that node's own measured rate.

`cost` adds what a choice does to others, in both directions.

Burden. A prefill of W seconds on a queue of V delays everyone who comes until that queue is empty again.
At utilisation u and S seconds per request, u/S come a second, and the queue lasts (V + W/2) / (1 - u): so
W x u/(1 - u) x (V + W/2)/S. (It is the difference that W makes to the value function of the M/G/1 queue;
Hyytia, Penttinen and Aalto, EJOR 2012, dispatch by it.) An idle mesh has no burden and each request may
be selfish; a busy one computes nothing twice and keeps queues level, because both cost all who follow.

Worth. A prefix computed on a second node can be answered from there later. If d requests for it are to be
expected, and a usual request is answered g seconds sooner there than where the prefix is now, that copy is
worth d x g, and is made once that is more than it costs. So what is popular spreads to idle nodes, what is
asked for once stays where it is, and nothing is copied between nodes that are equally busy.
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

FULL = 0.9
"""Utilisation above which no difference is made: the queue's end is out of sight, and the formula's
1/(1 - u) would let one sample more or less decide."""


class UnknownPolicyError(ValueError):
    """No routing policy has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown routing policy {name!r}; choose one of {', '.join(POLICIES)}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What routing may know of a request: its length, its first block, and a serial number.

    `usual_tokens` of a usual prompt are not cached where it goes; 0 says that there was none yet.
    """

    tokens: int
    first_block: BlockHash | None = None
    sequence: int = 0
    usual_tokens: float = 0.0


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
    utilisation: float = 0.0  # share of the time in which it has prompts to compute
    usual_s: float = 0.0  # average time to first token of a usual request there
    demand: float = 0.0  # requests expected for as much of the prompt as it claims


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
    burden_s: float  # what this prefill is expected to cost later requests together
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


def estimate(prompt: Prompt, candidate: Candidate) -> Estimate:
    """The expected time to first token of `prompt` on `candidate`, and what that costs others."""
    load = candidate.load
    claimed = min(candidate.claimed_tokens, max(prompt.tokens - 1, 0))
    cached = round(claimed * candidate.trust)
    uncached = prompt.tokens - cached
    queue_s = prefill_seconds(load.queued_prefill_tokens + candidate.reserved_tokens, load)
    prefill_s = prefill_seconds(uncached, load)
    return Estimate(
        node_id=candidate.node_id,
        is_self=candidate.is_self,
        claimed_tokens=claimed,
        cached_tokens=cached,
        uncached_tokens=uncached,
        rtt_s=candidate.rtt_s,
        queue_s=queue_s,
        prefill_s=prefill_s,
        burden_s=_burden(prompt, candidate, queue_s, prefill_s),
        excluded=candidate.excluded,
    )


def _burden(prompt: Prompt, candidate: Candidate, queue_s: float, prefill_s: float) -> float:
    usual_s = prefill_seconds(prompt.usual_tokens, candidate.load)
    if not usual_s:
        return 0.0
    busy = min(candidate.utilisation, FULL)
    return prefill_s * busy / (1.0 - busy) * (queue_s + prefill_s / 2) / usual_s


def prefill_seconds(tokens: float, load: Load) -> float:
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
    estimates = sorted(
        (estimate(prompt, candidate) for candidate in candidates),
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
    if copy := _worthwhile_copy(estimates, loads):
        return copy
    best = estimates[0].cost_s
    near = [e for e in estimates if e.cost_s <= best * (1 + NEAR_TIE_FRACTION) + NEAR_TIE_SECONDS]
    chosen = rng.choice(near)
    seconds = f"{chosen.total_s * 1000:.0f} ms expected"
    if len(near) > 1:
        return chosen, f"{seconds}, drawn from {len(near)} near-equals"
    other = estimates[1]
    instead = f"{_name(other)} would take {other.total_s * 1000:.0f} ms"
    if other.total_s < chosen.total_s:
        instead += " and delay others more"
    return chosen, f"{seconds}; {instead}"


def _worthwhile_copy(estimates: list[Estimate], loads: Loads) -> tuple[Estimate, str] | None:
    """A node that should compute what another has cached, since that pays for those who come after."""
    best = estimates[0]
    holder = loads[best.node_id]
    if not holder.demand:
        return None

    def profit(e: Estimate) -> float:
        sooner_s = holder.usual_s - loads[e.node_id].usual_s
        return holder.demand * sooner_s - (e.cost_s - best.cost_s)

    shorter = [e for e in estimates if e.claimed_tokens < best.claimed_tokens]
    chosen = max(shorter, key=profit, default=best)
    if chosen is best or profit(chosen) <= NEAR_TIE_SECONDS:
        return None
    sooner_ms = (holder.usual_s - loads[chosen.node_id].usual_s) * 1000
    reason = f"{chosen.total_s * 1000:.0f} ms expected; a copy for {holder.demand:.0f} more requests"
    return chosen, f"{reason}, each {sooner_ms:.0f} ms sooner than at {_name(best)}"


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
