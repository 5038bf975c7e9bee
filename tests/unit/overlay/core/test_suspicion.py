from __future__ import annotations

import pytest

from overlay.core.suspicion import Suspicion
from overlay.core.timing import Timing
from overlay.core.types import NodeId

TIMING = Timing()


def _confirmed(size: int, reporters: int) -> Suspicion:
    suspicion = Suspicion.begin(100.0, TIMING, size)
    for number in range(reporters):
        suspicion.confirm(NodeId(f"n{number}"))
    return suspicion


def test_confirmations_shrink_it_from_the_longest_to_the_shortest() -> None:
    deadlines = [_confirmed(100, reporters).deadline for reporters in range(1, 5)]
    assert deadlines == sorted(deadlines, reverse=True)
    assert deadlines[0] == pytest.approx(100.0 + 4 * 2 * 6)
    assert deadlines[-1] == pytest.approx(100.0 + 4 * 2)


@pytest.mark.parametrize(("size", "bound"), [(2, 4.0), (10, 4.0), (100, 8.0), (1000, 12.0)])
def test_shortest_is_four_times_the_logarithm(size: int, bound: float) -> None:
    assert _confirmed(size, 4).deadline == pytest.approx(100.0 + bound)


def test_where_nobody_could_confirm_it_is_short_at_once() -> None:
    assert _confirmed(2, 1).deadline == pytest.approx(104.0)


def test_the_same_reporter_counts_once() -> None:
    suspicion = _confirmed(100, 1)
    before = suspicion.deadline
    assert not suspicion.confirm(NodeId("n0"))
    assert suspicion.deadline == before


def test_out_of_everyones_earshot_it_is_short_at_once() -> None:
    suspicion = Suspicion.begin(100.0, TIMING, 100, alone=True)
    assert suspicion.deadline == pytest.approx(108.0)
