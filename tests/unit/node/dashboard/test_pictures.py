"""Pictures of a mesh, of caches and of decisions: true to what the node knows, bounded, and without text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from engine.interface import SamplingParams
from engine.outline import CachedRun
from node.dashboard.pictures import (
    MAX_CANDIDATES,
    MAX_NODES,
    Self,
    cache_picture,
    decision_picture,
    mesh_picture,
)
from node.dashboard.state_times import StateTimes
from node.decisions import RecordedDecision
from node.portrait import Portrait
from node.request import Request
from node.served import Served
from overlay.core.routing import Decision, Estimate
from overlay.core.types import Address, BlockHash, Load, NodeId
from overlay.core.views import PeerState, PeerView
from tests.unit.node.fakes import NAMESPACE, SELF, idle_load, peer_view

A, B = NodeId("a"), NodeId("b")


@dataclass
class FakeMesh:
    """What a node has heard."""

    views: tuple[PeerView, ...] = ()
    unreachable: set[NodeId] = field(default_factory=set)
    holders: dict[int, list[NodeId]] = field(default_factory=dict)
    node_id: NodeId = SELF
    addresses: tuple[Address, ...] = (Address("127.0.0.1", 7070),)

    def peers(self) -> tuple[PeerView, ...]:
        return self.views

    def own_load(self) -> Load:
        return idle_load()

    def is_reachable(self, node_id: NodeId) -> bool:
        return node_id not in self.unreachable

    def match(self, hashes: Sequence[BlockHash]) -> Mapping[NodeId, int]:
        return dict.fromkeys(self.holders.get(hashes[0], ()), 1)


def me(**portrait: object) -> Self:
    return Self("http://127.0.0.1:8080", "fake", False, Served(), Portrait(**portrait))  # type: ignore[arg-type]


def estimate(node_id: NodeId, total_s: float) -> Estimate:
    return Estimate(
        node_id=node_id,
        is_self=node_id == SELF,
        claimed_tokens=8,
        cached_tokens=8,
        uncached_tokens=2,
        rtt_s=0.0,
        queue_s=0.0,
        prefill_s=total_s,
        burden_s=0.0,
        wait_s=0.0,
        excluded="",
    )


def decided(request_id: str, estimates: int = 1) -> tuple[Request, Decision]:
    """A request, with a decision for the slowest of so many nodes."""
    request = Request(request_id, (7, 8, 9), SamplingParams(), NAMESPACE)
    listed = tuple(estimate(NodeId(f"n{index:03}"), float(index)) for index in range(estimates))
    return request, Decision("cost", listed[-1].node_id, "because", listed)


def picture(
    mesh: FakeMesh, own: Self, portraits: Mapping[NodeId, Portrait] | None = None
) -> dict[str, object]:
    return mesh_picture(mesh, own, portraits or {}, StateTimes(), {})


def test_links_and_flows_are_those_that_nodes_told() -> None:
    mesh = FakeMesh((peer_view(A), peer_view(B)))
    own = me(connected=(A, B), sent={A: 3})
    drawn = picture(mesh, own, {A: Portrait(connected=(SELF, B, NodeId("stranger")), sent={B: 2, A: 9})})
    assert [node["id"] for node in drawn["nodes"]] == [SELF, A, B]  # type: ignore[attr-defined]
    assert drawn["links"] == [[0, 1, 1.0], [0, 2, 1.0], [1, 2, None]]
    assert drawn["flows"] == [[0, 1, 3], [1, 2, 2]]


def test_a_large_mesh_is_drawn_in_part_the_connected_first() -> None:
    dead = replace(peer_view(NodeId("aaa")), state=PeerState.DEAD, connected=False)
    mesh = FakeMesh((dead, *(peer_view(NodeId(f"n{index:03}")) for index in range(99))))
    drawn = picture(mesh, me())
    assert len(drawn["nodes"]) == MAX_NODES  # type: ignore[arg-type]
    assert drawn["hidden"] == 100 - (MAX_NODES - 1)
    assert "aaa" not in json.dumps(drawn)


def test_a_dead_node_says_since_when() -> None:
    times = StateTimes(clock=lambda: 1234.5)
    times.note(A, PeerState.DEAD)
    mesh = FakeMesh((replace(peer_view(A), state=PeerState.DEAD, connected=False),))
    node = mesh_picture(mesh, me(), {}, times, {})["nodes"][1]
    assert (node["state"], node["since"], node["connected"], node["note"]) == ("dead", 1234.5, False, "")
    times.note(A, None)
    assert times.since(A) is None


@pytest.mark.parametrize(
    ("peer", "unreachable", "quarantined_s", "says"),
    [
        (peer_view(A), True, 0.0, "can't be dialled"),
        (peer_view(A, load=replace(idle_load(), draining=True)), False, 0.0, "draining"),
        (peer_view(A, load=replace(idle_load(), accepting=False)), False, 0.0, "full"),
        (peer_view(A), False, 2.0, "did not answer"),
    ],
)
def test_a_peer_that_gets_no_requests_says_why(
    peer: PeerView, unreachable: bool, quarantined_s: float, says: str
) -> None:
    mesh = FakeMesh((peer,), {A} if unreachable else set())
    node = mesh_picture(mesh, me(), {}, StateTimes(), {A: quarantined_s})["nodes"][1]
    assert says in node["note"]


def test_a_cache_tells_who_else_has_each_run() -> None:
    runs = (CachedRun(None, 0, 2, 5, 1, 10, (1 << 64) - 1), CachedRun(0, 2, 1, 0, 0, 12, 12))
    drawn = cache_picture(FakeMesh(holders={(1 << 64) - 1: [A]}), SELF, Portrait(cached_blocks=3, runs=runs))
    first, second = drawn["runs"]
    assert (first["holders"], second["holders"]) == ([A, SELF], [SELF])
    assert (first["last"], second["parent"]) == ("f" * 16, 0)


def test_a_decision_lists_the_best_and_the_chosen_and_no_token() -> None:
    request, decision = decided("x", MAX_CANDIDATES + 5)
    drawn = decision_picture(RecordedDecision(request, decision, 1.0))
    assert len(drawn["candidates"]) == MAX_CANDIDATES
    assert drawn["candidates"][-1]["id"] == drawn["target"] == decision.target
    assert drawn["hidden"] == 5
    assert drawn["tokens"] == 3
    assert "[7" not in json.dumps(drawn)
