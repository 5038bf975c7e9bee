"""The metrics that are read where they live, at scrape time."""

from __future__ import annotations

import time
from collections import Counter
from typing import Protocol

from engine.interface import EngineClient
from node.metrics import LabelledValues, Metrics
from node.served import Served
from overlay.core.router import Router
from overlay.net.mesh import Mesh


class Measured(Protocol):
    """What of a node is read at every scrape."""

    mesh: Mesh
    router: Router

    @property
    def engine(self) -> EngineClient: ...

    @property
    def served(self) -> Served: ...


def register_live_metrics(metrics: Metrics, node: Measured) -> None:
    """Adds the gauges and counters of the overlay and the engine."""
    mesh = node.mesh
    metrics.counter(
        "rumormill_gossip_bytes",
        "Bytes on gossip streams, by direction and frame kind",
        ["direction", "kind"],
        lambda: {labels: float(count) for labels, count in mesh.gossip_bytes.items()},
    )
    metrics.gauge(
        "rumormill_replica_age_seconds",
        "Time since a peer's cached set was last known to be current",
        ["peer"],
        lambda: {
            (peer.node_id,): peer.replica_age_s
            for peer in mesh.peers()
            if peer.connected and peer.replica_age_s is not None
        },
    )
    metrics.gauge(
        "rumormill_rtt_seconds",
        "Smoothed round trip to a connected peer",
        ["peer"],
        lambda: {
            (peer.node_id,): peer.rtt_s for peer in mesh.peers() if peer.connected and peer.rtt_s is not None
        },
    )
    metrics.gauge(
        "rumormill_members",
        "Peers by what this node believes of them",
        ["state"],
        lambda: dict(Counter((peer.state.value,) for peer in mesh.peers())),
    )
    metrics.gauge(
        "rumormill_quarantined_peers", "Peers left alone after a failure", [], lambda: _quarantined(node)
    )
    metrics.gauge("rumormill_kv_blocks", "Blocks of the KV cache", ["state"], lambda: _kv_blocks(node.engine))
    metrics.gauge(
        "rumormill_engine_requests", "Requests in the engine", ["state"], lambda: _requests(node.engine)
    )
    metrics.gauge(
        "rumormill_queued_prompt_tokens",
        "Uncached prompt tokens that the engine has still to compute",
        [],
        lambda: {(): node.engine.stats.queued_prefill_tokens},
    )
    metrics.counter(
        "rumormill_served_requests",
        "Requests answered by this node's engine, wherever they entered",
        [],
        lambda: {(): node.served.requests},
    )
    metrics.counter(
        "rumormill_served_tokens",
        "Tokens of those: prompt tokens found cached or computed, and tokens generated",
        ["kind"],
        lambda: _served_tokens(node.served),
    )


def _quarantined(node: Measured) -> LabelledValues:
    now = time.monotonic()
    return {(): sum(node.router.quarantine.remaining(peer.node_id, now) > 0 for peer in node.mesh.peers())}


def _kv_blocks(engine: EngineClient) -> LabelledValues:
    stats = engine.stats
    return {
        ("used",): stats.kv_blocks_used,
        ("cached",): stats.kv_blocks_cached,
        ("total",): stats.kv_blocks_total,
    }


def _requests(engine: EngineClient) -> LabelledValues:
    stats = engine.stats
    return {("running",): stats.running, ("waiting",): stats.waiting}


def _served_tokens(served: Served) -> LabelledValues:
    return {
        ("cached",): served.cached_tokens,
        ("computed",): served.prompt_tokens - served.cached_tokens,
        ("generated",): served.generated_tokens,
    }
