"""Requests through a mesh of modelled engines, routed by the shipped router, on one virtual clock.

The rules of a request are those of the node's pipeline: forwarded at most once, an Accepted ends the
reservation, BUSY moves it to the next candidate, at most two peers, then the local queue, then a refusal
that the client retries when it was told to.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from overlay.core.router import Attempt, Query, Router
from overlay.core.routing import Decision
from overlay.core.timing import Timing
from overlay.core.types import NodeId
from overlay.sim.routing.calibration import Calibration
from overlay.sim.routing.engine_model import EngineModel, Job, Progress
from overlay.sim.routing.hearsay import MODEL, NodeHearsay, Rumours
from overlay.sim.routing.workloads import SimRequest, Workload

TIMING = Timing.lan()

MAX_PEERS = 2
"""Peers that a request may be refused by before it stays at its entry node."""

RPC_S = 0.001
"""One round trip between two processes on one machine: what a forward costs at no network delay."""

PATIENCE_S = 600.0
"""A client gives up this long after its request; that is then its time to first token in the report."""


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """The mesh that a workload runs on. `delay_s` is one way; `gossip_s` the period of block deltas.

    `load_s` is how often a load that changes is told. `liars` are nodes that find nothing in their cache, and
    from `lies_from_s` on claim every prompt; until then they claim nothing.
    """

    nodes: int
    policy: str
    delay_s: float = 0.0
    gossip_s: float = 1.0
    load_s: float = TIMING.load_min_s
    seed: int = 0
    liars: frozenset[int] = frozenset()
    lies_from_s: float = 0.0


@dataclass(slots=True, eq=False)
class Served:
    """How one request went; times in seconds since it was made."""

    request: SimRequest
    at: float = 0.0
    ttft_s: float | None = None
    served_by: int | None = None
    cached_tokens: int = 0
    predicted_tokens: int = 0
    predicted_s: float = 0.0
    busy: int = 0
    refused: int = 0
    failed: bool = False
    then: list[Served] = field(default_factory=list)  # what the client asks after this


@dataclass(slots=True, eq=False)
class _Node:
    number: int
    node_id: NodeId
    engine: EngineModel
    hearsay: NodeHearsay
    router: Router
    jobs: dict[Job, Callable[[Progress], None]] = field(default_factory=dict)
    told_at: float = float("-inf")
    tell_planned: bool = False
    wake_at: float = float("inf")


class RoutingMesh:
    """One workload under one policy. Same arguments, same run."""

    def __init__(self, options: MeshOptions, calibration: Calibration, block_tokens: int) -> None:
        self.options = options
        self.now = 0.0
        self._calibration = calibration
        self._block_tokens = block_tokens
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        ids = [NodeId(f"node{number:04d}") for number in range(options.nodes)]
        self.rumours = Rumours(ids, RPC_S + 2 * options.delay_s)
        self.nodes = [self._make(number, node_id) for number, node_id in enumerate(ids)]
        if options.liars:
            self._at(options.lies_from_s, self._begin_to_lie)

    def run(self, workload: Workload) -> list[Served]:
        """Plays a workload to its end; one record per request, in order of arrival."""
        served = [Served(request) for request in workload.requests]
        self._left = len(served)
        for each in served:
            after = each.request.after
            if after is None:
                self._at(each.request.at, partial(self._arrive, each))
            else:
                served[after].then.append(each)
        rng = random.Random(f"gossip/{self.options.seed}")
        for node in self.nodes:
            self.rumours.heard_load(node.node_id, node.engine.load())
            self._at(rng.random() * self.options.gossip_s, partial(self._gossip, node))
            self._keep_told(node)
        while self._left:
            self.now, _, action = heapq.heappop(self._events)
            action()
        return served

    def _make(self, number: int, node_id: NodeId) -> _Node:
        options = self.options
        engine = EngineModel(self._calibration, self._block_tokens, forgetful=number in options.liars)
        hearsay = NodeHearsay(node_id, self.rumours, engine.load(), TIMING.forwarded_s)
        rng = random.Random(f"router/{options.seed}/{number}")
        return _Node(number, node_id, engine, hearsay, Router(hearsay, MODEL, options.policy, rng))

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), action))

    def _later(self, action: Callable[[], None]) -> None:
        """After one network delay, and its half of a round trip's own cost."""
        self._at(self.now + self.options.delay_s + RPC_S / 2, action)

    # -- requests ---------------------------------------------------------------------------------

    def _arrive(self, served: Served) -> None:
        served.at = self.now
        self._route(served, {})

    def _ended(self, served: Served) -> None:
        """The client has its answer, or gave up: its next request follows."""
        for each in served.then:
            self._at(self.now + each.request.pause_s, partial(self._arrive, each))

    def _route(self, served: Served, avoid: dict[NodeId, str]) -> None:
        """Takes a request to the next place to try."""
        request, entry = served.request, self.nodes[served.request.entry]
        self._catch_up(entry)
        own = entry.engine.accepts_clients
        policy = "local" if len(avoid) >= MAX_PEERS else ""
        shunned = avoid if own else {entry.node_id: "this node's queue is full", **avoid}
        query = Query(
            request.tokens,
            request.hashes,
            self._block_tokens,
            0 if entry.number in self.options.liars else entry.engine.cached_tokens(request.hashes),
        )
        entry.hearsay.now, entry.hearsay.load = self.now, entry.engine.load()
        decision = entry.router.decide(query, self.now, policy=policy, avoid=shunned)
        if decision.target != entry.node_id:
            self._forward(served, entry, decision, avoid)
        elif own:
            self._serve_here(served, entry, decision)
        else:
            self._refuse(served, entry)

    def _serve_here(self, served: Served, entry: _Node, decision: Decision) -> None:
        def progress(news: Progress) -> None:
            if news.first_token:
                self._first_token(served, entry, news.job, decision)
            if news.finished:
                self._ended(served)

        if entry.number not in self.options.liars:
            entry.hearsay.forwarded(entry.node_id, served.request.hashes)
        self._submit(entry, served.request, progress)

    def _refuse(self, served: Served, entry: _Node) -> None:
        served.refused += 1
        retry_at = self.now + entry.engine.retry_after_s
        if retry_at - served.at < PATIENCE_S:
            self._at(retry_at, lambda: self._route(served, {}))
            return
        served.failed = True
        served.ttft_s = PATIENCE_S
        self._left -= 1
        self._ended(served)

    def _forward(self, served: Served, entry: _Node, decision: Decision, avoid: dict[NodeId, str]) -> None:
        peer = self._node_of(decision.target)
        attempt = entry.router.attempt(decision)
        entry.hearsay.forwarded(peer.node_id, served.request.hashes)
        self._later(lambda: self._received(served, entry, peer, decision, attempt, avoid))

    def _received(
        self,
        served: Served,
        entry: _Node,
        peer: _Node,
        decision: Decision,
        attempt: Attempt,
        avoid: dict[NodeId, str],
    ) -> None:
        """A peer got a forwarded request."""
        self._catch_up(peer)
        if not peer.engine.accepts_peers:
            retry_after_s, load = peer.engine.retry_after_s, peer.engine.load()

            def busy() -> None:
                served.busy += 1
                entry.hearsay.observe(peer.node_id, load)
                attempt.busy(self.now, retry_after_s)
                attempt.close()
                self._route(served, {**avoid, peer.node_id: "answered BUSY"})

            self._later(busy)
            return

        def progress(news: Progress) -> None:
            load = peer.engine.load()

            def arrived() -> None:
                if news.first_token:
                    attempt.answered(news.job.cached_tokens or 0, self.now)
                    self._first_token(served, peer, news.job, decision)
                if news.finished:
                    entry.hearsay.observe(peer.node_id, load)
                    attempt.close()
                    self._ended(served)

            self._later(arrived)

        self._submit(peer, served.request, progress)
        accepted_load = peer.engine.load()

        def accepted() -> None:
            entry.hearsay.observe(peer.node_id, accepted_load)
            attempt.accepted()

        self._later(accepted)

    def _first_token(self, served: Served, node: _Node, job: Job, decision: Decision) -> None:
        served.ttft_s = self.now - served.at
        served.served_by = node.number
        served.cached_tokens = job.cached_tokens or 0
        served.predicted_tokens = decision.chosen.cached_tokens
        served.predicted_s = decision.chosen.total_s
        self._left -= 1

    def _node_of(self, node_id: NodeId) -> _Node:
        return self.nodes[int(node_id[4:])]

    # -- engines ----------------------------------------------------------------------------------

    def _submit(self, node: _Node, request: SimRequest, progress: Callable[[Progress], None]) -> None:
        job = Job(request.tokens, request.answered, request.answer_tokens)
        node.jobs[job] = progress
        node.engine.submit(self.now, job)
        self._watch(node)
        self._changed(node)

    def _catch_up(self, node: _Node) -> None:
        """Runs a node's engine up to now, and passes on what came of it."""
        news = node.engine.run_to(self.now)
        for each in news:
            node.jobs[each.job](each)
            if each.finished:
                del node.jobs[each.job]
        self._watch(node)
        if news:
            self._changed(node)

    def _watch(self, node: _Node) -> None:
        """Looks again when the engine next has something to tell."""
        at = node.engine.next_at
        if at is None or at == node.wake_at:
            return
        node.wake_at = at
        self._at(at, lambda: self._wake(node, at))

    def _wake(self, node: _Node, at: float) -> None:
        if node.wake_at == at:
            node.wake_at = float("inf")
            self._catch_up(node)

    # -- hearsay ----------------------------------------------------------------------------------

    def _begin_to_lie(self) -> None:
        self.rumours.liars = frozenset(self.nodes[number].node_id for number in self.options.liars)

    def _gossip(self, node: _Node) -> None:
        if node.number in self.options.liars:
            return
        self._at(self.now + self.options.gossip_s, lambda: self._gossip(node))
        self._catch_up(node)
        stored, removed = node.engine.cache.take_events()
        if stored or removed:
            self._later(lambda: self.rumours.heard_blocks(node.node_id, stored, removed))

    def _changed(self, node: _Node) -> None:
        """A node's load changed: it is told, but not too often."""
        if node.tell_planned:
            return
        due = node.told_at + self.options.load_s
        if due <= self.now:
            self._tell(node)
        else:
            node.tell_planned = True
            self._at(due, lambda: self._tell_planned(node))

    def _tell_planned(self, node: _Node) -> None:
        node.tell_planned = False
        self._catch_up(node)
        self._tell(node)

    def _tell(self, node: _Node) -> None:
        node.told_at = self.now
        load = node.engine.load()
        self._later(lambda: self.rumours.heard_load(node.node_id, load))
        if node.engine.next_at is not None:
            self._changed(node)  # a queue that shrinks is news as well

    def _keep_told(self, node: _Node) -> None:
        """An unchanged load is told again when it grows old."""
        self._at(self.now + TIMING.load_max_s, lambda: self._keep_told(node))
        if self.now - node.told_at >= TIMING.load_max_s * 0.999:
            self._catch_up(node)
            self._tell(node)
