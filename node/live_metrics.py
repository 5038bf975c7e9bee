"""The metrics that are read where they live, at scrape time."""

from __future__ import annotations

from collections import Counter

from engine.interface import EngineClient
from node.metrics import Metrics
from overlay.net.mesh import Mesh


def register_live_metrics(metrics: Metrics, mesh: Mesh, engine: EngineClient) -> None:
    """Adds the gauges and counters of the overlay and the engine."""
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
        "rumormill_members",
        "Peers by what this node believes of them",
        ["state"],
        lambda: dict(Counter((peer.state.value,) for peer in mesh.peers())),
    )
    metrics.gauge("rumormill_kv_blocks", "Blocks of the KV cache", ["state"], lambda: _kv_blocks(engine))


def _kv_blocks(engine: EngineClient) -> dict[tuple[str, ...], float]:
    stats = engine.stats
    return {
        ("used",): stats.kv_blocks_used,
        ("cached",): stats.kv_blocks_cached,
        ("total",): stats.kv_blocks_total,
    }
