from __future__ import annotations

import asyncio
import time

import pytest

from overlay.core import events
from overlay.core.core import SLOW_BYTES
from overlay.core.events import LinkId
from overlay.core.hashes import EMPTY
from overlay.core.messages import (
    Ack,
    Bye,
    ByeReason,
    Delta,
    Head,
    Heads,
    LoadReport,
    Members,
    Message,
    Snapshot,
    Want,
)
from overlay.core.priority import Priority, priority_of
from overlay.core.types import Epoch, Load, Version
from overlay.net.codec import encode
from overlay.net.link import MAX_QUEUE_BYTES, Link
from rumormill.v1 import overlay_pb2 as pb
from tests.unit.overlay.core.harness import PEER
from tests.unit.overlay.net.meshes import Member, eventually

BULK = pb.Frame(snapshot=pb.Snapshot(chunks=1, hashes=bytes(64 << 10)))
SIZE = BULK.ByteSize()


class Watched:
    """A link that remembers what it reported."""

    def __init__(self) -> None:
        self.queue: list[int] = []
        self.sent = 0
        self.link = Link(LinkId(1), lambda link: self.queue.append(link.bytes_waiting), self._count)

    def _count(self, frame: pb.Frame, size: int) -> None:
        self.sent += size


async def test_a_filling_queue_is_reported_once_and_once_when_it_drained() -> None:
    watched = Watched()
    for _ in range(10):
        watched.link.send(BULK, Priority.BULK)
    assert len(watched.queue) == 1
    assert SLOW_BYTES < watched.queue[0] <= SLOW_BYTES + SIZE
    watched.link.end()
    assert [frame async for frame in watched.link.outgoing()] == [BULK] * 10
    assert len(watched.queue) == 2
    assert watched.queue[1] <= SLOW_BYTES // 4
    assert watched.link.bytes_waiting == 0
    assert watched.sent == 10 * SIZE


async def test_what_is_queued_is_written_before_the_end_and_nothing_after_it() -> None:
    watched = Watched()
    watched.link.send(pb.Frame(probe=pb.Probe(sequence=1)), Priority.MEMBERSHIP)
    watched.link.end()
    watched.link.send(pb.Frame(probe=pb.Probe(sequence=2)), Priority.MEMBERSHIP)
    assert [frame.probe.sequence async for frame in watched.link.outgoing()] == [1]


async def test_the_most_urgent_is_written_first_whatever_waits() -> None:
    epoch, version = Epoch(1), Version(1)
    urgent: list[Message] = [
        Members(()),
        Ack(1, 1),
        LoadReport(None, Load(epoch, 0)),
        Want(PEER, epoch, version),
        Delta(None, epoch, version, Version(2), EMPTY, EMPTY),
        Heads((Head(None, epoch, version, version, 0, 0, 0),)),
        Heads((Head(PEER, epoch, version, version, 0, 0, 0),)),
        Delta(PEER, epoch, version, Version(2), EMPTY, EMPTY),
        Snapshot(None, epoch, version, 0, 1, EMPTY),
        Snapshot(PEER, epoch, version, 0, 1, EMPTY),
    ]
    watched = Watched()
    for message in sorted(urgent, key=priority_of, reverse=True):
        watched.link.send(encode(message), priority_of(message))
    watched.link.end()
    assert [frame async for frame in watched.link.outgoing()] == [encode(message) for message in urgent]
    assert priority_of(Bye(ByeReason.LEAVING)) is Priority.MEMBERSHIP


async def test_a_peer_that_never_reads_is_seen() -> None:
    watched = Watched()
    for _ in range(MAX_QUEUE_BYTES // SIZE):
        watched.link.send(BULK, Priority.BULK)
    assert not watched.link.is_overfull
    watched.link.send(BULK, Priority.BULK)
    assert watched.link.is_overfull


async def test_a_late_loop_is_told_before_what_it_made_late(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with Member(tmp_path_factory.mktemp("a")) as member:
        driver = member.mesh._driver
        seen: list[events.Event] = []
        handle = driver.core.handle

        def spy(now: float, event: events.Event) -> object:
            seen.append(event)
            return handle(now, event)

        driver.core.handle = spy  # type: ignore[assignment,method-assign]
        await eventually(lambda: bool(seen))
        await asyncio.sleep(0)
        seen.clear()
        time.sleep(0.6)  # noqa: ASYNC251  a held-up loop is the point
        await eventually(lambda: any(isinstance(event, events.TimerFired) for event in seen))
        assert isinstance(seen[0], events.LoopLag)
        assert seen[0].lag_s > 0.4
