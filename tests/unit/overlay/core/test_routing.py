"""Routing decisions: what must hold of every policy, and what each one promises."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.core.routing import (
    POLICIES,
    Candidate,
    Prompt,
    UnknownPolicyError,
    choose,
    estimate,
)
from overlay.core.types import BlockHash, Epoch, Load, NodeId

MS = 0.001


def load(
    *, queued: int = 0, per_token: float = 2 * MS, running: int = 0, waiting: int = 0, decode: float = 20 * MS
) -> Load:
    return Load(
        Epoch(1),
        1,
        running=running,
        waiting=waiting,
        queued_prefill_tokens=queued,
        seconds_per_prefill_token=per_token,
        seconds_per_decode_step=decode,
        prefill_tokens_per_step=512,
    )


def candidate(
    name: str,
    *,
    cached: int = 0,
    rtt: float = 0.0,
    reserved: int = 0,
    excluded: str = "",
    is_self: bool = False,
    at: Load | None = None,
) -> Candidate:
    return Candidate(NodeId(name), at or load(), cached, rtt, reserved, is_self=is_self, excluded=excluded)


loads = st.builds(
    load,
    queued=st.integers(0, 50_000),
    per_token=st.floats(0.0001, 0.05),
    running=st.integers(0, 16),
    waiting=st.integers(0, 16),
)


@st.composite
def meshes(draw: st.DrawFn) -> list[Candidate]:
    count = draw(st.integers(1, 8))
    return [
        Candidate(
            NodeId(f"n{index}"),
            draw(loads),
            draw(st.integers(0, 4096)),
            draw(st.floats(0, 2)),
            draw(st.integers(0, 5000)),
            is_self=index == 0,
            excluded=draw(st.sampled_from(["", "", "busy"])),
        )
        for index in range(count)
    ]


prompts = st.builds(
    Prompt, st.integers(1, 8192), st.integers(0, 2**64 - 1).map(BlockHash), st.integers(0, 99)
)


@given(st.sampled_from(sorted(POLICIES)), prompts, meshes(), st.integers(0, 999))
def test_every_policy_chooses_a_listed_open_node_or_itself(
    policy: str, prompt: Prompt, mesh: list[Candidate], seed: int
) -> None:
    decision = choose(policy, prompt, mesh, random.Random(seed))
    chosen = next(c for c in mesh if c.node_id == decision.target)
    assert not chosen.excluded or (chosen.is_self and all(c.excluded for c in mesh))
    assert decision.reason
    assert {e.node_id for e in decision.estimates} == {c.node_id for c in mesh}
    assert decision == choose(policy, prompt, mesh, random.Random(seed))


@given(prompts, meshes(), st.integers(0, 999))
def test_cost_is_never_worse_than_a_near_tie_of_the_best(
    prompt: Prompt, mesh: list[Candidate], seed: int
) -> None:
    """As long as nothing follows, that is."""
    decision = choose("cost", prompt, mesh, random.Random(seed))
    open_to = [e for e in decision.estimates if not e.excluded]
    if open_to:
        best = open_to[0]
        assert decision.chosen.cost_s <= best.cost_s + best.total_s * 0.05 + 3 * MS + 1e-9


@given(prompts, loads, st.integers(0, 4096), st.integers(0, 4096))
def test_a_longer_cached_prefix_never_makes_an_estimate_worse(
    prompt: Prompt, at: Load, one: int, other: int
) -> None:
    short, long = sorted((one, other))
    assert (
        estimate(prompt, candidate("a", cached=long, at=at)).total_s
        <= estimate(prompt, candidate("a", cached=short, at=at)).total_s
    )


def test_one_token_is_always_computed() -> None:
    assert estimate(Prompt(64), candidate("a", cached=64)).uncached_tokens == 1


def test_a_far_cache_loses_to_computing_here_when_the_network_costs_more() -> None:
    here = candidate("self", is_self=True)
    near = candidate("near", cached=480, rtt=5 * MS)
    far = candidate("far", cached=480, rtt=2.0)
    prompt = Prompt(512)  # 1,024 ms here, 64 ms where it is cached
    assert choose("cost", prompt, [here, near], random.Random(1)).target == "near"
    assert choose("cost", prompt, [here, far], random.Random(1)).target == "self"


def test_a_prefix_that_everyone_holds_decides_nothing() -> None:
    nodes = [candidate(f"n{i}", cached=256) for i in range(4)]
    nodes[2] = candidate("n2", cached=256, at=load(queued=2000))
    nodes.append(candidate("self", cached=256, at=load(queued=2000), is_self=True))
    chosen = Counter[str](
        choose("cost", Prompt(512), nodes, random.Random(seed)).target for seed in range(300)
    )
    assert not {"n2", "self"} & set(chosen)
    assert min(chosen[n] for n in ("n0", "n1", "n3")) > 60


def test_of_equals_this_node_is_taken_and_one_that_computes_less_before_it() -> None:
    nodes = [
        candidate("self", cached=256, is_self=True),
        candidate("a", cached=256),
        candidate("b", cached=256),
    ]
    assert all(choose("cost", Prompt(512), nodes, random.Random(n)).target == "self" for n in range(20))
    nodes[1] = candidate("a", cached=260)
    assert all(choose("cost", Prompt(512), nodes, random.Random(n)).target == "a" for n in range(20))


def holder_and_idle(*, queued: int) -> list[Candidate]:
    """A holder of 512 cached tokens with a queue, and three idle nodes."""
    nodes = [candidate("self", is_self=True), candidate("a"), candidate("b")]
    return [*nodes, candidate("holder", cached=512, at=load(queued=queued))]


def test_a_busy_mesh_waits_a_little_for_a_cached_prefix_and_an_idle_one_has_no_need_to() -> None:
    nodes = holder_and_idle(queued=900)  # 1,976 ms at the holder, 1,200 ms elsewhere
    idle, busy = Prompt(600, usual_tokens=300), Prompt(600, usual_tokens=300, utilisation=0.6)
    assert choose("cost", idle, nodes, random.Random(1)).target != "holder"
    decision = choose("cost", busy, nodes, random.Random(1))
    assert decision.target == "holder"
    assert "delay others" in decision.reason


def test_no_mesh_is_so_busy_that_a_cached_prefix_is_worth_any_wait() -> None:
    prompt = Prompt(600, usual_tokens=300, utilisation=1.0)
    assert choose("cost", prompt, holder_and_idle(queued=20_000), random.Random(1)).target != "holder"


@given(prompts, loads, st.floats(0, 1), st.floats(0, 1))
def test_burden_grows_with_utilisation_and_is_nothing_in_an_idle_mesh(
    prompt: Prompt, at: Load, one: float, other: float
) -> None:
    shares = (0.0, *sorted((one, other)))
    burdens = [
        estimate(replace(prompt, usual_tokens=200.0, utilisation=share), candidate("a", at=at)).burden_s
        for share in shares
    ]
    assert burdens == sorted(burdens)
    assert burdens[0] == 0


def copying(demand: float, *, usual_here_s: float = 0.2) -> list[Candidate]:
    """A holder, usually busy, of a prefix that takes 1 s to compute; and an idle node."""
    holder = candidate("holder", cached=512, at=load(queued=250))
    idle = candidate("self", is_self=True)
    return [replace(holder, usual_wait_s=0.5, demand=demand), replace(idle, usual_wait_s=usual_here_s)]


def test_a_prefix_is_copied_to_an_idler_node_once_enough_requests_will_gain_by_it() -> None:
    prompt = Prompt(600, usual_tokens=88)  # 676 ms at the holder, 1,200 ms here
    assert choose("cost", prompt, copying(1), random.Random(1)).target == "holder"
    decision = choose("cost", prompt, copying(2), random.Random(1))  # 2 x 300 ms > 524 ms
    assert decision.target == "self"
    assert "copy for 2 more requests" in decision.reason


def test_nothing_is_copied_between_nodes_that_are_equally_busy_now_or_on_average() -> None:
    prompt = Prompt(600, usual_tokens=88)
    by_average = copying(1000, usual_here_s=0.5)
    assert choose("cost", prompt, by_average, random.Random(1)).target == "holder"
    now = [replace(node, load=load(queued=250)) for node in copying(1000)]
    assert choose("cost", prompt, now, random.Random(1)).target == "holder"


def test_a_dialogue_does_not_begin_far_away_to_spare_its_first_turn_a_little() -> None:
    nodes = [candidate("self", is_self=True), candidate("far", cached=400, rtt=0.3)]  # 500 ms sooner there
    assert choose("cost", Prompt(600, usual_tokens=88), nodes, random.Random(1)).target == "far"
    dialogue = Prompt(600, usual_tokens=88, follow_ups=5.0)
    decision = choose("cost", dialogue, nodes, random.Random(1))
    assert decision.target == "self"
    assert "what follows" in decision.reason


def test_the_older_the_news_the_fewer_nodes_pick_the_best_of_all() -> None:
    """One of sixteen looks idle to everybody."""
    nodes = [candidate(f"n{i}", at=load(queued=500)) for i in range(14)]
    nodes += [candidate("idle"), candidate("self", at=load(queued=500), is_self=True)]

    def herd(unseen: float) -> int:
        prompt = Prompt(512, unseen=unseen)
        return sum(choose("cost", prompt, nodes, random.Random(n)).target == "idle" for n in range(400))

    assert herd(0.5) == 400
    assert 150 < herd(2.5) < 250
    assert 20 < herd(1000.0) < 100


def test_who_alone_has_the_prefix_is_looked_at_however_old_the_news() -> None:
    nodes = [candidate(f"n{i}") for i in range(14)]
    nodes += [candidate("holder", cached=480), candidate("self", is_self=True)]
    prompt = Prompt(512, unseen=1000.0)
    assert all(choose("cost", prompt, nodes, random.Random(n)).target == "holder" for n in range(50))


def test_reservations_count_as_queued_work() -> None:
    nodes = [candidate("self", is_self=True, at=load(queued=1000)), candidate("peer", reserved=2000)]
    assert choose("cost", Prompt(100), nodes, random.Random(1)).target == "self"


def test_longest_prefix_goes_where_most_is_cached_whatever_the_queue() -> None:
    nodes = [
        candidate("self", is_self=True),
        candidate("a", cached=100),
        candidate("b", cached=400, at=load(queued=9999)),
    ]
    assert choose("longest-prefix", Prompt(512), nodes, random.Random(1)).target == "b"


def test_least_loaded_ignores_the_cache() -> None:
    nodes = [candidate("self", is_self=True, cached=500, at=load(queued=10)), candidate("a")]
    assert choose("least-loaded", Prompt(512), nodes, random.Random(1)).target == "a"


def test_local_stays_until_this_node_is_full() -> None:
    peer = candidate("peer", cached=500)
    assert (
        choose("local", Prompt(512), [candidate("self", is_self=True), peer], random.Random(1)).target
        == "self"
    )
    full = candidate("self", is_self=True, excluded="full")
    assert choose("local", Prompt(512), [full, peer], random.Random(1)).target == "peer"


def test_round_robin_takes_turns() -> None:
    nodes = [candidate("self", is_self=True), candidate("a"), candidate("b")]
    turns = [choose("round-robin", Prompt(10, None, n), nodes, random.Random(1)).target for n in range(6)]
    assert Counter(turns) == {"self": 2, "a": 2, "b": 2}


def test_consistent_hash_moves_only_the_prompts_of_a_node_that_left() -> None:
    nodes = [candidate(f"n{i}", is_self=i == 0) for i in range(5)]
    blocks = [BlockHash(random.Random(n).getrandbits(64)) for n in range(200)]

    def owners(mesh: list[Candidate]) -> list[NodeId]:
        return [choose("consistent-hash", Prompt(10, b), mesh, random.Random(1)).target for b in blocks]

    before, after = owners(nodes), owners(nodes[:4])
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "n4")
    assert len(Counter(before)) == 5


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownPolicyError, match="least-loaded"):
        choose("fastest", Prompt(10), [candidate("self", is_self=True)], random.Random(1))
