"""Which node answers a request: a pure function of what this node knows, with its reasons.

The estimate that every policy is shown is the time to first token: network round trip, plus the prefill
queued ahead, plus the prompt tokens not cached there, at that node's own measured rate.

`cost` adds what a choice does to others and to what follows.

Burden. A prefill of W seconds on a queue of V delays everyone who comes until that queue is empty again.
At utilisation u and S seconds per request, u/S come a second, and the queue lasts (V + W/2) / (1 - u): so
W x u/(1 - u) x (V + W/2)/S. (It is the difference that W makes to the value function of the M/G/1 queue,
by which Hyytia, Penttinen and Aalto dispatch, EJOR 2012. Here u is the whole mesh's, since others avoid a
long queue too.) An idle mesh has no burden and each request may be selfish; a busy one computes nothing
twice and keeps queues level, because both cost all who follow.

Follow-ups. The next turns of a dialogue go where its history is. As many as usual are expected, and each
will meet what lasts about a node: its distance, and a queue that is longer both now and on average.

Herds. Of nodes with equally much cached a request looks at fewer, drawn at random but never less than two,
the more requests are placed before news of them is out: who picks the best of all by old news picks it
together with everyone else (Mitzenmacher, How useful is old information?, IEEE TPDS 2000).

Copies. A prefix that is computed on a second node can be answered from there later. If d requests for it
are expected, and each will be g seconds sooner there than where it is now, that copy is worth d x g, and
is made once that is more than it costs. So what is popular spreads to idle nodes, what is asked for once
stays where it is, and nothing is copied between nodes that are equally busy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from overlay.core.types import BlockHash, Load, NodeId, short_id

NEAR_TIE_FRACTION = 0.05
"""Estimates this close to the best are equal: the measurements behind them are no better. Of equals
take one that computes least: this node, or else any, lest all take the same."""

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
    """What routing may know of a request: its length, its first block, a serial number, and what is usual.

    Of a usual prompt `usual_tokens` are not cached where it goes (0: there was none yet), `follow_ups`
    come after it, and the mesh has prompts to compute for the share `utilisation` of its time. About
    `unseen` others are placed before loads show them.
    """

    tokens: int
    first_block: BlockHash | None = None
    sequence: int = 0
    usual_tokens: float = 0.0
    follow_ups: float = 0.0
    utilisation: float = 0.0
    unseen: float = 0.0


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
    usual_wait_s: float = 0.0  # average wait of a usual request there, network aside
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
    wait_s: float  # what a usual request would wait for its first token now, network aside
    excluded: str

    @property
    def total_s(self) -> float:
        """The expected time to first token."""
        return self.rtt_s + self.queue_s + self.prefill_s

    @property
    def cost_s(self) -> float:
        """What this request and those that it delays pay."""
        return self.total_s + self.burden_s


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen node, why, and what every candidate was expected to take (best first)."""

    policy: str
    target: NodeId
    reason: str
    estimates: tuple[Estimate, ...]
    later_s: Mapping[NodeId, float] = field(default_factory=dict)
    """How much later than at the soonest the expected follow-ups would start at each node compared."""
    copy_s: Mapping[NodeId, float] = field(default_factory=dict)
    """What a copy of the prefix at each node compared would save others, less what it costs."""

    @property
    def chosen(self) -> Estimate:
        """The estimate for the chosen node."""
        return next(estimate for estimate in self.estimates if estimate.node_id == self.target)


def estimate(prompt: Prompt, candidate: Candidate) -> Estimate:
    """The expected time to first token of `prompt` on `candidate`, and what that costs others."""
    load = candidate.load
    ahead = load.queued_prefill_tokens + candidate.reserved_tokens
    claimed = min(candidate.claimed_tokens, max(prompt.tokens - 1, 0))
    cached = round(claimed * candidate.trust)
    uncached = prompt.tokens - cached
    queue_s, prefill_s = prefill_seconds(ahead, load), prefill_seconds(uncached, load)
    usual_s = prefill_seconds(prompt.usual_tokens, load)
    return Estimate(
        node_id=candidate.node_id,
        is_self=candidate.is_self,
        claimed_tokens=claimed,
        cached_tokens=cached,
        uncached_tokens=uncached,
        rtt_s=candidate.rtt_s,
        queue_s=queue_s,
        prefill_s=prefill_s,
        burden_s=_burden(prompt.utilisation, queue_s, prefill_s, usual_s),
        wait_s=queue_s + usual_s,
        excluded=candidate.excluded,
    )


def _burden(utilisation: float, queue_s: float, prefill_s: float, usual_s: float) -> float:
    if not usual_s:
        return 0.0
    busy = min(utilisation, FULL)
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
    verdict = POLICIES[policy](prompt, open_to, loads, rng)
    return Decision(
        policy,
        verdict.chosen.node_id,
        verdict.reason,
        tuple(estimates),
        verdict.later_s,
        verdict.copy_s,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy makes of the estimates; for the last two fields see Decision."""

    chosen: Estimate
    reason: str
    later_s: Mapping[NodeId, float] = field(default_factory=dict)
    copy_s: Mapping[NodeId, float] = field(default_factory=dict)


Loads = dict[NodeId, Candidate]
Policy = Callable[[Prompt, list[Estimate], Loads, random.Random], Verdict]


def _cost(prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random) -> Verdict:
    estimates = _looked_at(prompt.unseen, estimates, rng)
    soonest = estimates[0]
    lasting_s = {e.node_id: _lasting(e, soonest, loads) for e in estimates}
    later_s = {node_id: prompt.follow_ups * seconds for node_id, seconds in lasting_s.items()}

    def cost(e: Estimate) -> float:
        return e.cost_s + later_s[e.node_id]

    best = min(estimates, key=cost)
    copy_s = _copies(best, estimates, loads, cost, lasting_s)
    copied = max(estimates, key=lambda e: copy_s.get(e.node_id, -math.inf))
    if copy_s.get(copied.node_id, 0.0) > NEAR_TIE_SECONDS:
        sooner_s = lasting_s[best.node_id] - lasting_s[copied.node_id]
        reason = f"{copied.total_s * 1000:.0f} ms expected; a copy for {loads[best.node_id].demand:.0f} more"
        reason += f" requests, each {sooner_s * 1000:.0f} ms sooner than at {_name(best)}"
        return Verdict(copied, reason, later_s, copy_s)
    near_s = best.total_s * NEAR_TIE_FRACTION + NEAR_TIE_SECONDS
    equals = [e for e in estimates if cost(e) <= cost(best) + near_s]
    least = min(e.uncached_tokens for e in equals)
    near = [e for e in equals if e.uncached_tokens == least]
    chosen = next((e for e in near if e.is_self), None) or rng.choice(near)
    seconds = f"{chosen.total_s * 1000:.0f} ms expected"
    if len(near) > 1:
        taken = "here as well as" if chosen.is_self else "drawn from"
        return Verdict(chosen, f"{seconds}, {taken} {len(near)} near-equals", later_s, copy_s)
    if len(estimates) == 1:
        return Verdict(chosen, seconds, later_s, copy_s)
    other = min((e for e in estimates if e is not chosen), key=lambda e: e.total_s)
    instead = f"{_name(other)} would take {other.total_s * 1000:.0f} ms"
    if other.total_s < chosen.total_s:
        instead += " and delay others or what follows more"
    return Verdict(chosen, f"{seconds}; {instead}", later_s, copy_s)


def _looked_at(unseen: float, estimates: list[Estimate], rng: random.Random) -> list[Estimate]:
    """Those of the estimates that are compared, in their order; this node is always among them."""
    if unseen <= 1.0:
        return estimates
    alike: dict[int, list[Estimate]] = {}
    for e in estimates:
        if not e.is_self:
            alike.setdefault(e.cached_tokens, []).append(e)
    kept: set[NodeId] = set()
    for group in alike.values():
        count = max(2, math.ceil(len(group) / unseen))
        kept.update(e.node_id for e in (group if count >= len(group) else rng.sample(group, count)))
    return [e for e in estimates if e.is_self or e.node_id in kept]


def _lasting(e: Estimate, reference: Estimate, loads: Loads) -> float:
    """How much later than on `reference` a usual request will start on a node in times to come."""
    now_s = e.wait_s - reference.wait_s
    usually_s = loads[e.node_id].usual_wait_s - loads[reference.node_id].usual_wait_s
    if now_s * usually_s <= 0:
        return e.rtt_s - reference.rtt_s
    return e.rtt_s - reference.rtt_s + min(now_s, usually_s, key=abs)


def _copies(
    best: Estimate,
    estimates: list[Estimate],
    loads: Loads,
    cost: Callable[[Estimate], float],
    lasting_s: Mapping[NodeId, float],
) -> dict[NodeId, float]:
    """What each node would gain for those who come after if it computed what `best` has cached."""
    demand = loads[best.node_id].demand
    return {
        e.node_id: demand * (lasting_s[best.node_id] - lasting_s[e.node_id]) - (cost(e) - cost(best))
        for e in estimates
        if e.claimed_tokens < best.claimed_tokens
    }


def _longest_prefix(prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random) -> Verdict:
    longest = max(e.cached_tokens for e in estimates)
    tied = [e for e in estimates if e.cached_tokens == longest]
    chosen = next((e for e in tied if e.is_self), None) or rng.choice(tied)
    return Verdict(chosen, f"longest cached prefix: {longest} of {prompt.tokens} tokens")


def _least_loaded(prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random) -> Verdict:
    def work(e: Estimate) -> tuple[float, int]:
        load = loads[e.node_id].load
        return e.queue_s, load.running + load.waiting

    least = min(work(e) for e in estimates)
    chosen = rng.choice([e for e in estimates if work(e) == least])
    return Verdict(chosen, f"least loaded: {least[0] * 1000:.0f} ms queued, {least[1]} requests")


def _random(prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random) -> Verdict:
    return Verdict(rng.choice(sorted(estimates, key=lambda e: e.node_id)), "drawn at random")


def _round_robin(prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random) -> Verdict:
    turn = prompt.sequence % len(estimates)
    chosen = sorted(estimates, key=lambda e: e.node_id)[turn]
    return Verdict(chosen, f"turn {turn + 1} of {len(estimates)}")


def _consistent_hash(prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random) -> Verdict:
    """Rendezvous hashing (Thaler and Ravishankar, 1998) of the first block."""
    key = (prompt.first_block or 0).to_bytes(8, "little")
    chosen = max(estimates, key=lambda e: blake2b(key + e.node_id.encode(), digest_size=8).digest())
    return Verdict(chosen, "first block's rendezvous hash")


def _local(prompt: Prompt, estimates: list[Estimate], loads: Loads, rng: random.Random) -> Verdict:
    own = next((e for e in estimates if e.is_self), None)
    if own is None:
        return Verdict(estimates[0], "this node is full")
    return Verdict(own, "always here")


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
