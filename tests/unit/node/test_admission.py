"""Who is let in: everybody while there is room, and no client takes all of it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from engine.interface import EngineStats
from node.admission import Admission


def fill(admission: Admission, client: str, tokens: int, stack: ExitStack, queued: int = 0) -> int:
    """Sends requests of so many tokens until one is refused; what is queued then."""
    while admission.accepts_clients(EngineStats(queued_prefill_tokens=queued), client):
        stack.enter_context(admission.queued(client, tokens))
        queued += tokens
    return queued


def test_a_flood_leaves_room_for_others_and_they_for_more() -> None:
    admission = Admission(max_queued_tokens=1000, max_requests=10_000)
    with ExitStack() as stack:
        first = fill(admission, "a", 10, stack)
        assert first == 1000
        second = fill(admission, "b", 10, stack, queued=first)
        assert second == 1500
        assert admission.accepts_clients(EngineStats(queued_prefill_tokens=second), "c")
    assert fill(admission, "a", 10, ExitStack()) == 1000


def test_a_flood_of_short_requests_leaves_places_for_others() -> None:
    admission = Admission(max_queued_tokens=1 << 20, max_requests=64)
    with ExitStack() as stack:
        for live in range(64):
            if not admission.accepts_clients(EngineStats(running=8, waiting=live - 8), "a"):
                break
            stack.enter_context(admission.queued("a", 1)).leave()
        assert live == 32
        assert admission.accepts_clients(EngineStats(running=8, waiting=live - 8), "b")


def test_what_left_the_queue_makes_room_again() -> None:
    admission = Admission(max_queued_tokens=10, max_requests=64)
    with admission.queued("a", 20) as place:
        assert not admission.accepts_clients(EngineStats(), "a")
        place.leave()
        place.leave()
        assert admission.accepts_clients(EngineStats(), "a")
    assert not admission._tokens
    assert not admission._requests


@pytest.mark.parametrize(
    "stats", [EngineStats(queued_prefill_tokens=1000), EngineStats(running=16, waiting=48)]
)
def test_peers_are_told_busy_by_the_whole_queue(stats: EngineStats) -> None:
    admission = Admission(max_queued_tokens=1000, max_requests=64)
    assert admission.accepts_peers(EngineStats())
    assert not admission.accepts_peers(stats)
    admission.draining = True
    assert not admission.accepts_peers(EngineStats())
