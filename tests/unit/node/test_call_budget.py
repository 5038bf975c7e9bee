"""How many calls one caller may make, on a clock that the test moves."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from node import limits
from node.call_budget import CallBudget
from node.errors import TooManyCallsError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def calls(budget: CallBudget, caller: str, count: int) -> int:
    """How many of `count` calls, one after another, were let through."""
    passed = 0
    for _ in range(count):
        try:
            with budget.call(caller):
                passed += 1
        except TooManyCallsError:
            pass
    return passed


def test_a_burst_is_let_through_and_then_a_rate() -> None:
    clock = Clock()
    budget = CallBudget(clock)
    burst, rate = int(limits.CALLS_AT_ONCE), int(limits.CALLS_PER_S)
    assert calls(budget, "a", burst + 10) == burst
    clock.now += 0.5
    assert calls(budget, "a", rate) == rate // 2
    assert calls(budget, "b", 10) == 10


def test_calls_at_the_same_time_are_bounded_and_ended_ones_are_not_counted() -> None:
    budget = CallBudget(Clock())
    with ExitStack() as stack:
        for _ in range(limits.MAX_LIVE_CALLS):
            stack.enter_context(budget.call("a"))
        with pytest.raises(TooManyCallsError, match="open"), budget.call("a"):
            pass
    with budget.call("a"):
        pass


def test_a_call_that_fails_is_not_counted_for_ever() -> None:
    budget = CallBudget(Clock())
    for _ in range(10):
        with pytest.raises(KeyError), budget.call("a"):
            raise KeyError
    assert budget._accounts["a"].live == 0


def test_quiet_callers_are_forgotten_and_busy_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CALLERS", 3)
    budget = CallBudget(Clock())
    with budget.call("busy"):
        assert sum(calls(budget, f"passer-by {number}", 1) for number in range(100)) == 100
        assert len(budget) == 3
        assert budget._accounts["busy"].live == 1
    with ExitStack() as stack:
        for number in range(3):
            stack.enter_context(budget.call(f"busy {number}"))
        with pytest.raises(TooManyCallsError, match="callers"), budget.call("another"):
            pass
