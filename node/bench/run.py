"""A whole benchmark of a mesh that runs: one workload under one policy after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from certs.credentials import Credentials
from node.bench.load import LoadGenerator
from node.bench.results import Figures, Result, figures
from node.bench.sessions import Session
from node.bench.workloads import BenchError, Model, WorkloadOptions, make_sessions
from node.demo.workload import load_subjects
from node.fleet import Fleet, Member
from rumormill.v1 import inference_pb2

SETTLE_SECONDS = 10.0

Tell = Callable[[str, int, int], None]
"""What is done, how much of it, of how much."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured. `rate` 0 is a closed loop of `concurrency` sessions.

    `policies` may have the empty name, for each node's own. `cold` empties all caches before each.
    """

    workload: str
    requests: int
    skew: float
    seed: int
    answer_tokens: int
    data: Path | None
    concurrency: int
    rate: float
    policies: Sequence[str]
    cold: bool
    timeout_s: float
    one_entry: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's results; all nodes of the mesh by id, in the order in which they were found."""

    policy: str
    nodes: tuple[str, ...]
    results: tuple[Result, ...]
    figures: Figures


async def bench(plan: Plan, address: str, credentials: Credentials, tell: Tell) -> list[Run]:
    """Raises ClientError or BenchError."""
    async with Fleet(address, credentials) as fleet:
        entries = await _entries(fleet, one=plan.one_entry)
        options = WorkloadOptions(
            len(entries), plan.requests, plan.skew, plan.seed, plan.answer_tokens, plan.data
        )
        model = await _model(fleet.first)
        sessions = await asyncio.to_thread(make_sessions, plan.workload, options, model)
        return [await _run(plan, policy, sessions, fleet, entries, tell) for policy in plan.policies]


async def _entries(fleet: Fleet, *, one: bool) -> list[Member]:
    """The nodes that requests enter at, sorted by id."""
    if one:
        return [fleet.first]
    await fleet.find(await fleet.first.peers())
    if fleet.unreachable:
        names = ", ".join(sorted(node_id[:8] for node_id in fleet.unreachable))
        raise BenchError(f"can't reach {names} from here; open their gRPC ports, or give --one-entry")
    return sorted(fleet.members.values(), key=lambda member: member.node_id)


async def _model(member: Member) -> Model:
    """What prompts must fit; the token ids are those of some ordinary text."""
    served = (await member.status()).model
    text = "".join(subject.prefix for subject in load_subjects())[: served.context_tokens * 8]
    answer = await member.inference.Tokenize(inference_pb2.TokenizeRequest(prompt=text))
    return Model(served.context_tokens, served.block_size, sorted(set(answer.token_ids.ids)))


async def _run(
    plan: Plan,
    policy: str,
    sessions: Sequence[Session],
    fleet: Fleet,
    entries: Sequence[Member],
    tell: Tell,
) -> Run:
    name, done = policy or "the nodes' own policy", 0

    def count(result: Result) -> None:
        nonlocal done
        done += 1
        tell(name, done, plan.requests)

    tell(name, 0, plan.requests)
    if plan.cold:
        await _empty_caches(entries)
    before = await _gossip_bytes(entries)
    generator = LoadGenerator(entries, policy, plan.timeout_s, count)
    if plan.rate:
        results = await generator.open(sessions, plan.rate)
    else:
        results = await generator.closed(sessions, plan.concurrency)
    gossip = await _gossip_bytes(entries) - before
    nodes = sorted(fleet.members.keys() | {r.served_by for r in results if r.served_by})
    used = next((result.policy for result in results if result.policy), policy)
    return Run(used, tuple(nodes), tuple(results), figures(results, nodes, gossip))


async def _empty_caches(members: Sequence[Member]) -> None:
    """Empties every cache, and waits until every node knows that of every other."""
    await asyncio.gather(*(member.flush_cache() for member in members))
    deadline = time.monotonic() + SETTLE_SECONDS
    while not await _all_empty(members):
        if time.monotonic() > deadline:
            raise BenchError("the mesh is not idle, so its caches don't stay empty; leave out --cold")
        await asyncio.sleep(0.1)


async def _all_empty(members: Sequence[Member]) -> bool:
    ids = {member.node_id for member in members}
    for member in members:
        if (await member.status()).cached_blocks:
            return False
        if any(peer.cached_blocks for peer in await member.peers() if peer.node_id in ids):
            return False
    return True


async def _gossip_bytes(members: Sequence[Member]) -> int:
    return sum([(await member.status()).gossip_bytes["sent"] for member in members])
