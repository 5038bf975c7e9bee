"""What nodes say of themselves: the same after the wire, and refused when it makes no sense."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from engine.outline import CachedRun
from node.portrait import MAX_CONNECTED, MAX_RUNS, MAX_SENT, Portrait, portrait_from_pb, portrait_to_pb
from overlay.core.types import NodeId
from overlay.net.errors import MalformedFrameError
from rumormill.v1 import overlay_pb2


def node_id(number: int) -> NodeId:
    return NodeId(base64.b32encode(number.to_bytes(32, "big")).decode().lower().rstrip("="))


WHOLE = Portrait(
    connected=(node_id(1), node_id(2)),
    sent={node_id(2): 7},
    cached_blocks=9,
    runs=(
        CachedRun(None, 0, 4, 5, 1, 1, (1 << 64) - 1),
        CachedRun(0, 4, 2, 3, 0, 3, 4),
        CachedRun(1, 6, 1, 0, 0, 5, 5),
        CachedRun(None, 0, 2, 0, 0, 6, 7),
    ),
)


def test_a_portrait_is_the_same_after_the_wire() -> None:
    sent = portrait_to_pb(WHOLE, MAX_RUNS).SerializeToString()
    assert portrait_from_pb(overlay_pb2.DescribeResponse.FromString(sent)) == WHOLE


def test_no_more_runs_are_sent_than_asked_for() -> None:
    assert portrait_from_pb(portrait_to_pb(WHOLE, 2)).runs == WHOLE.runs[:2]


def too_many_runs(message: overlay_pb2.DescribeResponse) -> None:
    message.runs.extend([overlay_pb2.CachedRun(blocks=1)] * MAX_RUNS)


def too_many_sent(message: overlay_pb2.DescribeResponse) -> None:
    message.sent.extend([message.sent[0]] * MAX_SENT)


def too_many_connected(message: overlay_pb2.DescribeResponse) -> None:
    message.connected = message.connected * MAX_CONNECTED


def half_an_id(message: overlay_pb2.DescribeResponse) -> None:
    message.connected = message.connected[:40]


def an_orphan(message: overlay_pb2.DescribeResponse) -> None:
    message.runs[1].parent = 3


def its_own_parent(message: overlay_pb2.DescribeResponse) -> None:
    message.runs[0].parent = 1


def a_gap(message: overlay_pb2.DescribeResponse) -> None:
    message.runs[1].depth = 1 << 31


def an_empty_run(message: overlay_pb2.DescribeResponse) -> None:
    message.runs[3].blocks = 0


@pytest.mark.parametrize(
    "spoil",
    [
        too_many_runs,
        too_many_sent,
        too_many_connected,
        half_an_id,
        an_orphan,
        its_own_parent,
        a_gap,
        an_empty_run,
    ],
)
def test_a_portrait_that_makes_no_sense_is_refused(
    spoil: Callable[[overlay_pb2.DescribeResponse], None],
) -> None:
    message = portrait_to_pb(WHOLE, MAX_RUNS)
    spoil(message)
    with pytest.raises(MalformedFrameError):
        portrait_from_pb(message)
