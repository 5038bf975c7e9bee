"""What is asked for often, and lately."""

from __future__ import annotations

import math

import pytest

from overlay.core import demand
from overlay.core.demand import Demand
from overlay.core.types import BlockHash

A, B, C = BlockHash(1), BlockHash(2), BlockHash(3)


def test_it_counts_the_requests_through_a_block() -> None:
    asked = Demand(30.0)
    asked.asked([A, B], 5.0)
    asked.asked([A, C], 5.0)
    assert (asked.of(A, 5.0), asked.of(B, 5.0), asked.of(BlockHash(9), 5.0)) == (2.0, 1.0, 0.0)


def test_counts_fade_by_1_e_in_a_horizon() -> None:
    asked = Demand(30.0)
    asked.asked([A], 100.0)
    assert asked.of(A, 130.0) == pytest.approx(math.exp(-1))
    asked.asked([A], 130.0)
    assert asked.of(A, 130.0) == pytest.approx(1 + math.exp(-1))


def test_counts_stay_right_for_ever() -> None:
    """The growing scale is brought down before it overflows, after a long silence too."""
    asked = Demand(30.0)
    now = 0.0
    for pause in [7.0] * 2_000 + [1e7, 1e7]:
        now += pause
        asked.asked([A], now)
    assert asked.of(A, now) == pytest.approx(1.0)
    assert asked.of(A, now + 30.0) == pytest.approx(math.exp(-1))


def test_it_is_bounded_and_forgets_what_is_asked_for_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "MAX_BLOCKS", 8)
    asked = Demand(30.0)
    for number in range(100):
        asked.asked([A, BlockHash(100 + number)], 0.0)
    assert asked.of(A, 0.0) == 100.0
    assert sum(asked.of(BlockHash(100 + number), 0.0) for number in range(100)) <= 8


def dialogue(asked: Demand, number: int, turns: int) -> None:
    blocks = [BlockHash(number * 100 + turn) for turn in range(turns)]
    for turn in range(turns):
        asked.asked([A, *blocks[: turn + 1]], 0.0)


def test_it_learns_how_many_turns_a_dialogue_has() -> None:
    asked = Demand(30.0)
    for number in range(1, 100):
        dialogue(asked, number, 5)
    assert 3 < asked.follow_ups < 6
    for number in range(100, 400):
        dialogue(asked, number, 1)
    assert asked.follow_ups < 0.01


def test_prompts_that_only_share_their_beginning_do_not_continue_one_another() -> None:
    asked = Demand(30.0)
    for number in range(100):
        asked.asked([A, B, BlockHash(100 + number)], 0.0)
    assert asked.follow_ups < 0.02


def test_plans_have_an_end_however_long_dialogues_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "MAX_PROMPTS", 4)
    asked = Demand(30.0)
    dialogue(asked, 1, 80)
    for number in range(2, 90):
        dialogue(asked, number, 1)
    assert len(asked._ends) <= 4
    dialogue(asked, 90, 80)
    assert asked.follow_ups <= demand.MOST_FOLLOW_UPS
