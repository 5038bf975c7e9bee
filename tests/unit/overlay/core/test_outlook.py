"""Averages over the moments at which this node had a request to route."""

from __future__ import annotations

import math

import pytest

from overlay.core.outlook import HORIZON_S, Outlook
from overlay.core.types import NodeId

A = NodeId("a")


def sample(outlook: Outlook, now: float, *, busy: float, wait_s: float = 0.0) -> None:
    weight = outlook.weigh(now)
    outlook.sampled(A, weight, wait_s)
    outlook.busy(weight, busy)


def test_the_first_samples_weigh_the_same() -> None:
    outlook = Outlook()
    for number, busy in enumerate((1.0, 0.0, 0.0, 1.0)):
        sample(outlook, number / 1000, busy=busy, wait_s=number)
    assert outlook.utilisation == pytest.approx(0.5)
    assert outlook.usual_wait_s(A) == pytest.approx(1.5)


def test_old_samples_fade_with_time_and_not_with_number() -> None:
    outlook = Outlook()
    for number in range(1000):
        sample(outlook, number * 0.1, busy=1.0)
    assert outlook.utilisation == pytest.approx(1.0)
    sample(outlook, 99.9 + HORIZON_S, busy=0.0)
    assert outlook.utilisation == pytest.approx(math.exp(-1))


def test_a_forgotten_node_is_an_unknown_one() -> None:
    outlook = Outlook()
    sample(outlook, 0.0, busy=1.0, wait_s=2.0)
    outlook.forget(A)
    assert outlook.usual_wait_s(A) == outlook.usual_wait_s(NodeId("b")) == 0.0


def test_the_usual_request_is_that_of_the_last_few() -> None:
    outlook = Outlook()
    outlook.asked(100)
    assert outlook.usual_tokens == 100
    for _ in range(100):
        outlook.asked(300)
    assert outlook.usual_tokens == pytest.approx(300, rel=0.01)


def test_it_expects_requests_at_the_pace_of_the_last_few() -> None:
    outlook = Outlook()
    assert outlook.expected(10.0) == 0.0
    for number in range(50):
        outlook.weigh(number * 0.5)
    assert outlook.expected(10.0) == pytest.approx(20.0)
    for number in range(20):
        outlook.weigh(25.0 + number * 0.01)
    assert outlook.expected(1.0) == pytest.approx(100.0, rel=0.1)
