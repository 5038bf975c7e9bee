"""A failing peer is left alone for longer each time, and one good answer ends it."""

from __future__ import annotations

import itertools

from overlay.core.quarantine import FIRST_SECONDS, LONGEST_SECONDS, Quarantine
from overlay.core.types import NodeId

A = NodeId("a")


def test_it_doubles_up_to_a_bound_and_one_success_ends_it() -> None:
    quarantine, now, waits = Quarantine(), 0.0, []
    for _ in range(9):
        quarantine.failed(A, now)
        waits.append(quarantine.remaining(A, now))
        now += waits[-1]
    assert waits[0] == FIRST_SECONDS
    assert all(later == min(2 * earlier, LONGEST_SECONDS) for earlier, later in itertools.pairwise(waits))
    assert waits[-1] == LONGEST_SECONDS
    quarantine.succeeded(A)
    assert quarantine.remaining(A, now) == 0


def test_requests_that_fail_together_count_once() -> None:
    quarantine = Quarantine()
    for _ in range(5):
        quarantine.failed(A, 1.0)
    assert quarantine.remaining(A, 1.0) == FIRST_SECONDS


def test_after_the_time_one_trial_goes_at_a_time() -> None:
    quarantine = Quarantine()
    quarantine.failed(A, 0.0)
    assert quarantine.remaining(A, 1.0) == 0
    quarantine.began(A)
    assert quarantine.remaining(A, 1.0) == float("inf")
    quarantine.abandoned(A)
    assert quarantine.remaining(A, 1.0) == 0, "a trial whose client left says nothing"
    quarantine.began(A)
    quarantine.failed(A, 2.0)
    assert quarantine.remaining(A, 2.0) == 2 * FIRST_SECONDS
