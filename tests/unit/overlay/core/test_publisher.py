"""When this node tells of its own set, and at what length."""

from __future__ import annotations

import pytest

from overlay.core.events import LinkId, LocalBlocks, SendQueue
from overlay.core.messages import Delta, Heads
from overlay.core.types import BlockHash
from tests.unit.overlay.core.harness import Harness


def _node() -> Harness:
    node = Harness()
    node.connect(1)
    node.run(20.0, living=(1,))
    node.clear()
    return node


def _store(node: Harness, first: int, count: int = 1) -> None:
    node.tell(LocalBlocks(stored=[BlockHash(block) for block in range(first, first + count)]))


def test_the_first_change_after_a_quiet_time_is_told_soon() -> None:
    node = _node()
    _store(node, 0)
    node.run(0.25, living=(1,))
    assert [len(change.added) for change in node.sent(Delta)] == [1]


def test_changes_that_go_on_are_gathered() -> None:
    node = _node()
    for block in range(200):  # 20 a second
        _store(node, block)
        node.run(0.05, living=(1,))
    deltas = node.sent(Delta)
    assert 6 <= len(deltas) <= 8
    assert sum(len(change.added) for change in deltas) >= 160


@pytest.mark.parametrize("burst", [32, 5_000])
def test_enough_for_a_frame_of_its_own_does_not_wait(burst: int) -> None:
    node = _node()
    _store(node, 0)
    node.run(0.3, living=(1,))
    node.clear()
    _store(node, 10, burst)
    node.run(0.2, living=(1,))
    assert [len(change.added) for change in node.sent(Delta)] == [burst]


def test_deltas_keep_their_distance_however_much_changes() -> None:
    node = _node()
    for block in range(0, 10_000, 100):
        _store(node, block, 100)
        node.run(0.01, living=(1,))
    assert len(node.sent(Delta)) <= 6


def test_heads_are_rare_while_changes_go_on() -> None:
    node = _node()
    for block in range(400):
        _store(node, block)
        node.run(0.05, living=(1,))
    assert 1 <= len(node.sent(Heads)) <= 3
    node.run(2.0, living=(1,))
    node.clear()
    node.run(20.0, living=(1,))
    told = {(head.version, head.count) for message in node.sent(Heads) for head in message.heads}
    assert told == {(node.core.own.version, 400)}
    assert 7 <= len(node.sent(Heads)) <= 9
    node.clear()
    node.run(60.0, living=(1,))
    assert 5 <= len(node.sent(Heads)) <= 7


def test_a_slow_consumer_gets_no_deltas_but_the_head_once_it_has_caught_up() -> None:
    node = _node()
    node.tell(SendQueue(LinkId(1), 1 << 20))
    _store(node, 0, 100)
    node.run(0.5, living=(1,))
    assert node.sent(Delta) == []
    node.clear()
    node.tell(SendQueue(LinkId(1), 0))
    (told,) = node.sent(Heads)
    assert told.heads[0].count == 100
