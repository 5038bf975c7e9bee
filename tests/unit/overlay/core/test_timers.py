from __future__ import annotations

from overlay.core.timers import Timers


def test_timers_fire_in_order_of_time_then_of_setting() -> None:
    timers, fired = Timers(), list[str]()
    timers.at(2.0, lambda _: fired.append("late"))
    timers.at(1.0, lambda _: fired.append("first"))
    timers.at(1.0, lambda _: fired.append("second"))
    timers.run_due(0.5)
    assert fired == []
    assert timers.next() == 1.0
    timers.run_due(2.0)
    assert fired == ["first", "second", "late"]
    assert timers.next() is None


def test_cancelled_timers_never_fire() -> None:
    timers, fired = Timers(), list[str]()
    timers.at(1.0, lambda _: fired.append("no")).cancel()
    timers.at(3.0, lambda _: fired.append("yes"))
    assert timers.next() == 3.0
    timers.run_due(9.0)
    assert fired == ["yes"]


def test_a_timer_that_sets_itself_anew_does_not_hang_the_core() -> None:
    timers, fired = Timers(), list[float]()

    def again(now: float) -> None:
        fired.append(now)
        timers.at(now, again)

    timers.at(1.0, again)
    timers.run_due(1.0)
    assert fired == [1.0]
    timers.run_due(1.0)
    assert len(fired) == 2
