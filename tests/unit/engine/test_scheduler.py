"""Scheduling: budgets, no stalled streams, admission, preemption, abort. No model: tokens are made up."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.interface import HIGHEST_PRIORITY, LOWEST_PRIORITY, GenerationRequest
from engine.sequence import Sequence
from tests.unit.engine.scheduling import MODEL, make, run_step, sequence


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler, _ = make()
    scheduler.add(sequence("a", 25))
    assert [work.count for _ in range(3) for work in run_step(scheduler, 10)] == [10, 10, 5]


def test_streams_get_their_token_in_every_step_of_a_long_prompt() -> None:
    scheduler, _ = make()
    stream = sequence("stream", 3, max_tokens=20)
    scheduler.add(stream)
    run_step(scheduler)
    scheduler.add(sequence("long", 100, start=500))
    for _ in range(5):
        works = run_step(scheduler, 8)
        assert [work.count for work in works if work.sequence is stream] == [1]
        assert sum(work.count for work in works if work.sequence is not stream) == 8


def test_a_cached_prefix_is_not_computed_again_but_its_last_token_is() -> None:
    scheduler, _ = make()
    first = sequence("a", 16, max_tokens=2)
    scheduler.add(first)
    run_step(scheduler)
    last = first.path[-1]
    scheduler.remove(first)
    again = sequence("b", 16, max_tokens=1)
    scheduler.add(again)
    assert scheduler.queued_prefill_tokens() == 1
    (work,) = run_step(scheduler)
    assert (work.count, work.copied) == (1, last.block)
    assert again.cached_tokens == 15


def test_a_prefix_that_is_being_computed_is_waited_for_and_others_pass() -> None:
    scheduler, _ = make()
    first, twin, other = sequence("a", 41), sequence("b", 41), sequence("c", 9, start=500)
    for each in (first, twin, other):
        scheduler.add(each)
    assert [work.sequence for work in run_step(scheduler, 30)] == [first]
    assert [work.sequence for work in run_step(scheduler, 30)] == [first, other]
    assert twin in [work.sequence for work in run_step(scheduler, 30)]
    assert twin.cached_tokens == 40
    assert other.cached_tokens == 0


def test_prompts_that_part_soon_wait_only_for_what_they_share() -> None:
    scheduler, _ = make()
    first = sequence("a", 40)
    branch = Sequence(GenerationRequest("b", (*range(8), *range(700, 720)), MODEL), 2, frozenset())
    scheduler.add(first)
    scheduler.add(branch)
    assert [work.sequence for work in run_step(scheduler, 12)] == [first]
    assert [work.sequence for work in run_step(scheduler, 50)] == [first, branch]
    assert branch.cached_tokens == 8


def test_generated_tokens_are_cached_for_the_next_turn() -> None:
    scheduler, _ = make()
    first = sequence("a", 6, max_tokens=7)
    scheduler.add(first)
    while scheduler.running or scheduler.waiting:
        run_step(scheduler)
    next_turn = Sequence(
        GenerationRequest("b", (*first.token_ids, 7, 7, 7), MODEL), max_tokens=1, stop_ids=frozenset()
    )
    scheduler.add(next_turn)
    run_step(scheduler)
    assert next_turn.cached_tokens == 12


def test_admission_stops_at_max_running_and_at_the_last_block() -> None:
    scheduler, _ = make(max_running=2)
    for name in "abc":
        scheduler.add(sequence(name, 5, start=ord(name)))
    run_step(scheduler)
    assert (scheduler.running, scheduler.waiting) == (2, 1)
    scheduler, _ = make(blocks=4)
    for name in "ab":
        scheduler.add(sequence(name, 12, start=100 * ord(name)))
    run_step(scheduler)
    assert (scheduler.running, scheduler.waiting) == (1, 1)


def test_when_blocks_run_out_the_youngest_recomputes_later_and_all_finish() -> None:
    scheduler, cache = make(blocks=7)
    sequences = [sequence(name, 6, max_tokens=14, start=100 * index) for index, name in enumerate("abc")]
    for each in sequences:
        scheduler.add(each)
    for _ in range(200):
        run_step(scheduler)
        cache.check()
    assert scheduler.preemptions > 0
    for each in sequences:
        assert each.generated == 14
        assert each.token_ids[6:] == [1000 + position for position in range(6, 20)]
    assert cache.used_blocks == 0


def test_removing_a_waiting_or_running_sequence_frees_everything() -> None:
    scheduler, cache = make(max_running=1)
    running, waiting = sequence("a", 9), sequence("b", 9)
    scheduler.add(running)
    scheduler.add(waiting)
    run_step(scheduler, 3)
    scheduler.remove(waiting)
    scheduler.remove(running)
    assert (scheduler.running, scheduler.waiting, cache.used_blocks) == (0, 0, 0)
    cache.check()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_mix_of_requests_aborts_and_budgets_ends_with_clean_books(seed: int) -> None:
    rng = random.Random(seed)
    scheduler, cache = make(blocks=rng.randrange(6, 20), max_running=rng.randrange(1, 5))
    live: list[Sequence] = []
    finished = 0
    expected = 0
    for index in range(40):
        if rng.random() < 0.5:
            each = sequence(
                str(index),
                rng.randrange(1, 12),
                rng.randrange(1, 8),
                start=rng.randrange(3),
                client=rng.choice("abc"),
                priority=rng.randint(LOWEST_PRIORITY, HIGHEST_PRIORITY),
            )
            scheduler.add(each)
            live.append(each)
        if live and rng.random() < 0.15:
            scheduler.remove(live.pop(rng.randrange(len(live))))
        run_step(scheduler, rng.randrange(1, 16))
        cache.check()
        done = [each for each in live if each.generated >= each.max_tokens]
        finished += len(done)
        live = [each for each in live if each not in done]
        expected = max(expected, finished)
    for _ in range(500):
        run_step(scheduler, 16)
    cache.check()
    assert all(each.generated == each.max_tokens for each in live)
    assert (scheduler.running, scheduler.waiting, cache.used_blocks) == (0, 0, 0)
