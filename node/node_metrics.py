"""The metrics that are read from a node at scrape time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.node import Node


def register_node_metrics(node: Node) -> None:
    """Adds this node's gauges and counters to its registry."""
    node.metrics.counter(
        "rumormill_gossip_bytes",
        "Bytes on gossip streams, by direction and frame kind",
        ["direction", "kind"],
        lambda: {labels: float(count) for labels, count in node.mesh.gossip_bytes.items()},
    )
    node.metrics.gauge(
        "rumormill_replica_age_seconds",
        "Time since a peer's cached set was last known to be current",
        ["peer"],
        lambda: {
            (peer.node_id,): peer.replica_age_s
            for peer in node.mesh.peers()
            if peer.connected and peer.replica_age_s is not None
        },
    )
    node.metrics.gauge(
        "rumormill_members", "Peers by what this node believes of them", ["state"], lambda: _members(node)
    )
    node.metrics.gauge("rumormill_kv_blocks", "Blocks of the KV cache", ["state"], lambda: _kv_blocks(node))


def _members(node: Node) -> dict[tuple[str, ...], float]:
    return dict(Counter((peer.state.value,) for peer in node.mesh.peers()))


def _kv_blocks(node: Node) -> dict[tuple[str, ...], float]:
    stats = node.engine.stats
    return {
        ("used",): stats.kv_blocks_used,
        ("cached",): stats.kv_blocks_cached,
        ("total",): stats.kv_blocks_total,
    }
