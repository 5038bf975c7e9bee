"""Clients share the engine fairly by tokens, whatever one sends; priorities order one's own requests."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.interface import HIGHEST_PRIORITY
from engine.scheduler import QUANTUM, Scheduler
from engine.sequence import Sequence
from engine.waiting_queue import HEAD_START, MAX_CLIENTS, OUTPUT_WEIGHT, WaitingQueue
from tests.unit.engine.scheduling import make, run_step, sequence

FAR = 10_000
"""Apart enough that no two prompts share a block."""


def started(scheduler: Scheduler, wanted: Sequence, steps: int, budget: int = 1000) -> int:
    """After how many steps a sequence is computed; fails after `steps`."""
    for step in range(steps):
        if wanted in [work.sequence for work in run_step(scheduler, budget)]:
            return step
    pytest.fail(f"not computed in {steps} steps")


def test_a_newcomer_goes_before_the_rest_of_a_flood() -> None:
    scheduler, _ = make(max_running=2)
    for index in range(50):
        scheduler.add(sequence(f"a{index}", 8, client="a", start=index * FAR))
    run_step(scheduler)
    newcomer = sequence("b", 8, client="b", start=60 * FAR)
    scheduler.add(newcomer)
    assert started(scheduler, newcomer, 10) <= 4


def test_whoever_fills_every_place_with_long_answers_gives_way() -> None:
    scheduler, cache = make(blocks=2000, max_running=4)
    flood = [sequence(f"a{index}", 4, 1500, client="a", start=index * FAR) for index in range(20)]
    for each in flood:
        scheduler.add(each)
    run_step(scheduler)
    other = [sequence(f"b{index}", 4, 5, client="b", start=(50 + index) * FAR) for index in range(3)]
    for each in other:
        scheduler.add(each)
    started(scheduler, other[0], QUANTUM)
    while scheduler.running or scheduler.waiting:
        run_step(scheduler)
    cache.check()
    for each in flood:
        assert each.token_ids[4:] == [1000 + position for position in range(4, 1504)]


def test_a_long_prompt_does_not_hold_back_a_short_one_of_another_client() -> None:
    scheduler, _ = make(blocks=200)
    scheduler.add(sequence("a", 400, client="a"))
    run_step(scheduler, 10)
    short = sequence("b", 6, client="b", start=FAR)
    scheduler.add(short)
    assert started(scheduler, short, 2, budget=10) == 0


def test_blocks_run_out_for_the_most_served_client_first() -> None:
    """The other way round than by age: the light client's sequence is the younger."""
    scheduler, _ = make(blocks=13)
    heavy = [sequence(f"a{index}", 8, 40, client="a", start=index * FAR) for index in range(2)]
    for each in heavy:
        scheduler.add(each)
    for _ in range(4):
        run_step(scheduler)
    light = sequence("b", 8, 12, client="b", start=5 * FAR)
    scheduler.add(light)
    started(scheduler, light, 1)
    for _ in range(11):
        assert light in [work.sequence for work in run_step(scheduler)]
    assert scheduler.preemptions > 0


def service(sequences: list[Sequence]) -> int:
    """What sequences got so far, with prompts counted once they are complete."""
    return sum(
        len(each.request.token_ids) + OUTPUT_WEIGHT * each.generated for each in sequences if each.generated
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_two_clients_that_always_want_more_are_served_alike(seed: int) -> None:
    """However unlike their requests are, and however many."""
    rng = random.Random(seed)
    places = rng.randrange(1, 6)
    scheduler, cache = make(blocks=300, max_running=places)
    shapes = {client: (rng.randrange(1, 60), rng.randrange(1, 60)) for client in "ab"}
    depth = {client: rng.randrange(places + 1, 4 * places + 2) for client in "ab"}
    sent: dict[str, list[Sequence]] = {"a": [], "b": []}
    names = itertools.count(1)
    for _ in range(1200):
        for client, (length, answer) in shapes.items():
            open_ones = sum(each.generated < answer for each in sent[client][-2 * depth[client] :])
            for name in itertools.islice(names, depth[client] - open_ones):
                each = sequence(str(name), length, answer, client=client, start=name * FAR)
                scheduler.add(each)
                sent[client].append(each)
        run_step(scheduler, 64)
    cache.check()
    largest_request = 60 + OUTPUT_WEIGHT * 60
    assert abs(service(sent["a"]) - service(sent["b"])) <= QUANTUM + places * 2 * largest_request
    assert min(service(sent["a"]), service(sent["b"])) > 1000


def test_idle_time_is_not_saved_up() -> None:
    queue = WaitingQueue()
    for name in range(10):
        queue.add(sequence(str(name), 4, client="a"))
    queue.charge("a", 100_000)
    late = sequence("late", 4, client="b")
    queue.add(late)
    assert queue.first() is not late
    queue.charge("a", 1)
    assert queue.first() is late
    queue.charge("b", 2)
    assert queue.first() is not late


def test_higher_priority_goes_first_within_a_client() -> None:
    queue = WaitingQueue()
    order = [sequence(str(index), 4, priority=priority) for index, priority in enumerate((0, -2, 2, 0, 1))]
    for each in order:
        queue.add(each)
    taken = []
    while (first := queue.first()) is not None:
        taken.append(first)
        queue.remove(first)
    assert [each.request.request_id for each in taken] == ["2", "4", "0", "3", "1"]


def test_urgency_is_a_bounded_head_start_over_other_clients() -> None:
    """A client that calls everything urgent is ahead by so many tokens once, and no further."""
    queue = WaitingQueue()
    plain = sequence("b", 4, client="b")
    queue.add(plain)
    ahead = 0
    while ahead < 10 * HEAD_START:
        urgent = sequence("a", 4, client="a", priority=HIGHEST_PRIORITY)
        queue.add(urgent)
        if queue.first() is plain:
            break
        queue.remove(urgent)
        queue.charge("a", 64)
        ahead += 64
    assert HEAD_START <= ahead <= HIGHEST_PRIORITY * HEAD_START + 64


def test_urgent_requests_take_the_place_of_others_of_the_same_client() -> None:
    scheduler, _ = make(blocks=500, max_running=1)
    scheduler.add(sequence("slow", 4, 1000))
    run_step(scheduler)
    urgent = sequence("urgent", 4, 4, start=FAR, priority=1)
    scheduler.add(urgent)
    assert started(scheduler, urgent, 1) == 0


def test_a_preempted_sequence_keeps_its_place_before_its_client_s_later_ones() -> None:
    queue = WaitingQueue()
    first, second = sequence("first", 4), sequence("second", 4)
    queue.add(first)
    queue.remove(first)
    queue.add(second)
    queue.add(first)
    assert queue.first() is first
    assert queue.first({first}) is second


def test_counters_of_clients_that_went_are_bounded() -> None:
    queue = WaitingQueue()
    waiting = sequence("w", 4, client="waits")
    queue.add(waiting)
    for index in range(MAX_CLIENTS + 100):
        queue.charge(f"client-{index}", index)
    assert len(queue._served) <= MAX_CLIENTS
    assert queue.first() is waiting
