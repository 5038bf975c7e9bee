"""What the page is sent, as JSON values: the mesh, each node's cache, decisions.

Nodes are listed once a picture and named by their place in that list; times are milliseconds or unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.outline import CachedRun
from node.dashboard.state_times import StateTimes
from node.decisions import RecordedDecision
from node.portrait import Portrait
from node.served import Served
from overlay.core.routing import Estimate, prefill_seconds
from overlay.core.types import Address, BlockHash, Load, NodeId
from overlay.core.views import PeerState, PeerView

MAX_NODES = 48
"""Nodes drawn: what a page has room for. The rest is counted."""

MAX_LINKS = 512
MAX_CANDIDATES = 16
MAX_HOLDERS = 16

STALE_SECONDS = 3.0
"""A load is told at least once a second; one this old is marked."""

_ORDER = {state: rank for rank, state in enumerate(
    (PeerState.ALIVE, PeerState.SUSPECT, PeerState.DEAD, PeerState.LEFT, PeerState.CANDIDATE)
)}  # fmt: skip


class Hearsay(Protocol):
    """What the pictures need of the mesh."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def addresses(self) -> tuple[Address, ...]: ...

    def peers(self) -> tuple[PeerView, ...]: ...

    def own_load(self) -> Load: ...

    def is_reachable(self, node_id: NodeId) -> bool: ...

    def match(self, hashes: Sequence[BlockHash]) -> Mapping[NodeId, int]: ...


@dataclass(frozen=True, slots=True)
class Self:
    """What only this node knows of itself."""

    http_url: str
    model_name: str
    draining: bool
    served: Served
    portrait: Portrait


def mesh_picture(
    mesh: Hearsay,
    own: Self,
    portraits: Mapping[NodeId, Portrait],
    state_times: StateTimes,
    quarantined: Mapping[NodeId, float],
) -> dict[str, Any]:
    """The nodes, this one first, with their links and who has sent how many requests to whom."""
    peers = sorted(mesh.peers(), key=lambda peer: (not peer.connected, _ORDER[peer.state], peer.node_id))
    shown = peers[: MAX_NODES - 1]
    places = {mesh.node_id: 0} | {peer.node_id: place for place, peer in enumerate(shown, 1)}
    looks = {mesh.node_id: own.portrait, **portraits}
    return {
        "nodes": [_own_node(mesh, own)]
        + [_peer_node(mesh, peer, state_times, quarantined.get(peer.node_id, 0.0)) for peer in shown],
        "hidden": len(peers) - len(shown),
        "links": _links(places, looks, {peer.node_id: peer.rtt_s for peer in shown}),
        "flows": [
            [places[sender], places[receiver], count]
            for sender, look in looks.items()
            for receiver, count in look.sent.items()
            if sender in places and receiver in places and sender != receiver
        ][:MAX_LINKS],
        "served": {
            "requests": own.served.requests,
            "prompt_tokens": own.served.prompt_tokens,
            "cached_tokens": own.served.cached_tokens,
        },
    }


def _own_node(mesh: Hearsay, own: Self) -> dict[str, Any]:
    return {
        "id": mesh.node_id,
        "self": True,
        "state": "alive",
        "since": None,
        "connected": True,
        "note": "draining: takes no new requests" if own.draining else "",
        "url": own.http_url,
        "addresses": [str(address) for address in mesh.addresses],
        "model": own.model_name,
        "rtt_ms": None,
        "load": _load(mesh.own_load(), 0.0),
        "blocks": own.portrait.cached_blocks,
    }


def _peer_node(
    mesh: Hearsay, peer: PeerView, state_times: StateTimes, quarantined_s: float
) -> dict[str, Any]:
    return {
        "id": peer.node_id,
        "self": False,
        "state": peer.state.value,
        "since": state_times.since(peer.node_id),
        "connected": peer.connected,
        "note": _note(mesh, peer, quarantined_s),
        "url": peer.http_url,
        "addresses": [str(address) for address in peer.addresses],
        "model": peer.model_name,
        "rtt_ms": _ms(peer.rtt_s),
        "load": _load(peer.load, peer.load_age_s or 0.0) if peer.load else None,
        "blocks": peer.cached_blocks,
    }


def _note(mesh: Hearsay, peer: PeerView, quarantined_s: float) -> str:
    """Why requests don't go there, if they don't; empty for a node that is gone altogether."""
    if not peer.connected:
        return ""
    if not mesh.is_reachable(peer.node_id):
        return "in the mesh, but can't be dialled from here"
    if peer.load is not None and peer.load.draining:
        return "draining: takes no new requests"
    if quarantined_s > 0:
        return "did not answer lately: left alone for some seconds"
    if peer.load is not None and not peer.load.accepting:
        return "full: takes no requests from peers now"
    return ""


def _load(load: Load, age_s: float) -> dict[str, Any]:
    return {
        "running": load.running,
        "waiting": load.waiting,
        "queued_tokens": load.queued_prefill_tokens,
        "queued_ms": _ms(prefill_seconds(load.queued_prefill_tokens, load)),
        "blocks_total": load.kv_blocks_total,
        "blocks_used": load.kv_blocks_used,
        "age_s": round(age_s) if age_s >= STALE_SECONDS else 0,
    }


def _links(
    places: Mapping[NodeId, int], looks: Mapping[NodeId, Portrait], rtts: Mapping[NodeId, float | None]
) -> list[list[float | None]]:
    """[place, place, round trip in ms or None]: only this node's own round trips are known."""
    links: dict[tuple[int, int], float | None] = {}
    for node_id, look in looks.items():
        for other in look.connected:
            if node_id in places and other in places and node_id != other:
                pair = (min(places[node_id], places[other]), max(places[node_id], places[other]))
                links.setdefault(pair, _ms(rtts.get(other)) if pair[0] == 0 else None)
    return [[*pair, rtt_ms] for pair, rtt_ms in sorted(links.items())[:MAX_LINKS]]


def cache_picture(mesh: Hearsay, node_id: NodeId, portrait: Portrait) -> dict[str, Any]:
    """One node's cache: its most used runs of blocks, and who else is believed to have each to its end."""
    return {
        "node": node_id,
        "blocks": portrait.cached_blocks,
        "runs": [_run(mesh, node_id, run) for run in portrait.runs],
    }


def _run(mesh: Hearsay, node_id: NodeId, run: CachedRun) -> dict[str, Any]:
    holders = sorted({node_id, *mesh.match([BlockHash(run.last_hash)])})
    return {
        "parent": run.parent,
        "depth": run.depth,
        "blocks": run.blocks,
        "hits": run.hits,
        "running": run.running,
        "first": hash_label(run.first_hash),
        "last": hash_label(run.last_hash),
        "holders": holders[:MAX_HOLDERS],
    }


def hash_label(block_hash: int) -> str:
    """A block hash for people and JavaScript, whose numbers have 53 bits."""
    return f"{block_hash:016x}"


def decision_picture(recorded: RecordedDecision) -> dict[str, Any]:
    """One decision with what was expected of every candidate, the chosen one always among them."""
    decision = recorded.decision
    best = decision.estimates[:MAX_CANDIDATES]
    chosen = decision.chosen
    listed = best if chosen in best else (*best[:-1], chosen)
    return {
        "id": recorded.request.id,
        "at": round(recorded.unix_time_s, 3),
        "policy": decision.policy,
        "target": decision.target,
        "reason": decision.reason,
        "tokens": len(recorded.request.token_ids),
        "resumed": recorded.request.resumed_tokens,
        "candidates": [_candidate(estimate) for estimate in listed],
        "hidden": len(decision.estimates) - len(listed),
    }


def _candidate(estimate: Estimate) -> dict[str, Any]:
    return {
        "id": estimate.node_id,
        "self": estimate.is_self,
        "cached": estimate.cached_tokens,
        "claimed": estimate.claimed_tokens,
        "rtt_ms": _ms(estimate.rtt_s),
        "queue_ms": _ms(estimate.queue_s),
        "prefill_ms": _ms(estimate.prefill_s),
        "total_ms": _ms(estimate.total_s),
        "excluded": estimate.excluded,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
