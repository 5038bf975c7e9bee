"""What an entry node remembers for a moment: work just sent, BUSY, failures, claims that failed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from overlay.core.router import LONGEST_LEASE_SECONDS, Query, Router
from overlay.core.routing import Decision
from overlay.core.types import Address, BlockHash, Epoch, Load, NodeId
from overlay.core.views import PeerState, PeerView

SELF, A, B = NodeId("self"), NodeId("a"), NodeId("b")
HASHES = [BlockHash(n) for n in range(32)]


def load(sequence: int = 1, **fields: object) -> Load:
    base = Load(Epoch(1), sequence, seconds_per_prefill_token=0.002, prefill_tokens_per_step=512)
    return replace(base, **fields)  # type: ignore[arg-type]  # fields of Load, by name


def view(node_id: NodeId, **fields: object) -> PeerView:
    base = PeerView(
        node_id=node_id,
        state=PeerState.ALIVE,
        connected=True,
        addresses=(Address("127.0.0.1", 7070),),
        model=b"m",
        model_name="m",
        http_url="",
        rtt_s=0.001,
        load=load(),
        load_age_s=0.0,
        cached_blocks=0,
        replica_age_s=0.0,
    )
    return replace(base, **fields)  # type: ignore[arg-type]  # fields of PeerView, by name


@dataclass
class Told:
    """An overlay that says what it is told to."""

    views: tuple[PeerView, ...] = (view(A), view(B))
    matches: dict[NodeId, int] = field(default_factory=dict)
    unreachable: frozenset[NodeId] = frozenset()
    node_id: NodeId = SELF

    def match(self, hashes: Sequence[BlockHash]) -> Mapping[NodeId, int]:
        return self.matches

    def peers(self) -> tuple[PeerView, ...]:
        return self.views

    def own_load(self) -> Load:
        return load(queued_prefill_tokens=100_000)

    def is_reachable(self, node_id: NodeId) -> bool:
        return node_id not in self.unreachable


class Scene:
    """A router whose own node is never the best choice."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.router = Router(told, b"m", "cost", random.Random(1))
        self.now = 10.0

    def decide(self) -> Decision:
        return self.router.decide(Query(512, HASHES, 16, 0), self.now)

    def excluded(self, node_id: NodeId) -> str:
        return next(e.excluded for e in self.decide().estimates if e.node_id == node_id)

    def cached(self, node_id: NodeId) -> int:
        return next(e.cached_tokens for e in self.decide().estimates if e.node_id == node_id)


def test_work_just_sent_counts_until_the_peer_reports_it() -> None:
    scene = Scene(Told(matches={A: 20}))
    first = scene.decide()
    assert first.target == A
    attempt = scene.router.attempt(first)
    queue = next(e.queue_s for e in scene.decide().estimates if e.node_id == A)
    assert queue == first.chosen.uncached_tokens * 0.002
    attempt.accepted()
    attempt.close()
    assert all(e.queue_s == 0 for e in scene.decide().estimates if not e.is_self)


def test_sixteen_requests_at_once_spread_out() -> None:
    """Each one sees those before it, though no report has come."""
    scene = Scene(Told(matches={}))
    targets = []
    for _ in range(16):
        decision = scene.decide()
        scene.router.attempt(decision)
        targets.append(decision.target)
    assert abs(targets.count(A) - targets.count(B)) <= 2


def test_a_busy_lease_ends_with_time() -> None:
    scene = Scene(Told())
    scene.router.attempt(replace(scene.decide(), target=A)).busy(scene.now, 0.4)
    assert scene.excluded(A) == "answered BUSY"
    scene.now += 0.41
    assert scene.excluded(A) == ""


def test_a_busy_lease_ends_with_a_fresher_report_that_accepts() -> None:
    scene = Scene(Told())
    scene.router.attempt(replace(scene.decide(), target=A)).busy(scene.now, 3.0)
    scene.told.views = (view(A, load=load(2, accepting=False)), view(B))
    assert scene.excluded(A) == "says it is full"
    scene.told.views = (view(A, load=load(3)), view(B))
    assert scene.excluded(A) == ""


def test_no_peer_talks_itself_out_of_the_mesh_for_long() -> None:
    scene = Scene(Told())
    scene.router.attempt(replace(scene.decide(), target=A)).busy(scene.now, 1e9)
    scene.now += LONGEST_LEASE_SECONDS + 0.01
    assert scene.excluded(A) == ""


def test_who_cannot_be_chosen_and_why() -> None:
    scene = Scene(Told(views=(view(A), view(B))))
    for fields, reason in (
        ({"model": b"x"}, "serves another model"),
        ({"connected": False}, "not connected"),
        ({"load": load(draining=True)}, "draining"),
        ({"load": load(accepting=False)}, "says it is full"),
        ({"load": replace(load(), seconds_per_prefill_token=0.0)}, "has not told its speed yet"),
    ):
        scene.told.views = (view(A, **fields), view(B))
        assert scene.excluded(A) == reason
    scene.told.views = (view(A), view(B))
    scene.told.unreachable = frozenset({A})
    assert scene.excluded(A) == "can't be dialled from here"


def test_a_liar_loses_its_advantage_within_a_few_answers_and_may_mend() -> None:
    scene = Scene(Told(matches={A: 30}))
    answers = 0
    while scene.decide().target == A and answers < 20:
        attempt = scene.router.attempt(scene.decide())
        attempt.answered(0, scene.now)
        attempt.close()
        answers += 1
    assert 1 <= answers < 20
    assert scene.cached(A) == 0
    scene.now += 3600
    assert scene.cached(A) > 0.95 * 480


def test_a_peer_that_has_shown_nothing_yet_is_not_flooded_with_what_it_claims_to_have() -> None:
    scene = Scene(Told(matches={A: 30}))
    attempts = [scene.router.attempt(replace(scene.decide(), target=A)) for _ in range(4)]
    assert scene.cached(A) == 120
    for attempt in attempts:
        attempt.answered(480, scene.now)
        attempt.close()
    assert scene.cached(A) == 480
    attempts = [scene.router.attempt(replace(scene.decide(), target=A)) for _ in range(4)]
    assert scene.cached(A) == 480


def test_a_liar_is_tried_again_ever_more_rarely() -> None:
    scene = Scene(Told(matches={A: 30}))
    tried: list[float] = []
    while scene.now < 2_000:
        scene.now += 1.0
        if scene.cached(A):
            scene.router.attempt(replace(scene.decide(), target=A)).answered(0, scene.now)
            tried.append(scene.now)
    assert sum(at < 60 for at in tried) < 20
    assert sum(at > 1_000 for at in tried) < 30


def test_a_peer_whose_claims_come_true_is_believed() -> None:
    scene = Scene(Told(matches={A: 30}))
    for _ in range(50):
        attempt = scene.router.attempt(scene.decide())
        attempt.answered(480, scene.now)
        attempt.close()
    assert scene.cached(A) == 480


def test_a_curious_question_teaches_nothing() -> None:
    scene = Scene(Told(matches={A: 20}))
    scene.router.decide(Query(512, HASHES, 16, 0), scene.now, learn=False)
    assert scene.router.outlook.usual_tokens == 0
    assert scene.router.demand.of(HASHES[0], scene.now) == 0
    scene.decide()
    assert scene.router.outlook.usual_tokens > 0
    assert scene.router.demand.of(HASHES[0], scene.now) == 1


def test_a_prompt_that_was_just_sent_to_this_node_counts_as_cached_here() -> None:
    own = NodeId("self")
    scene = Scene(Told(matches={own: 20}))
    assert scene.cached(own) == 320


def test_the_departed_are_forgotten() -> None:
    scene = Scene(Told(matches={A: 30}))
    attempt = scene.router.attempt(scene.decide())
    attempt.answered(0, scene.now)
    attempt.failed(scene.now)
    assert scene.excluded(A)
    scene.router.forget(A)
    assert scene.excluded(A) == ""
    assert scene.cached(A) == 480


def test_round_robin_takes_turns_over_requests_answered_here_too() -> None:
    scene = Scene(Told())
    query = Query(512, HASHES, 16, 0)
    targets = [
        scene.router.decide(query, scene.now, policy="round-robin", learn=True).target for _ in range(6)
    ]
    assert sorted(targets) == [A, A, B, B, SELF, SELF]


def test_a_cache_that_cannot_hold_the_prompt_is_no_candidate() -> None:
    """512 tokens and one more need 33 blocks of 16."""
    small, large = view(A, load=load(kv_blocks_total=32)), view(B, load=load(kv_blocks_total=33))
    scene = Scene(Told((small, large)))
    assert "too small" in scene.excluded(A)
    assert scene.excluded(B) == ""
    assert scene.decide().target == B
