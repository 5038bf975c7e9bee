"""The simulator's sizes are the codec's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlay.core.messages import (
    Ack,
    Bye,
    ByeReason,
    Filter,
    LoadReport,
    Member,
    Members,
    MemberState,
    Message,
    Nack,
    Probe,
    ProbeRequest,
    RangeDigests,
    RangeHashes,
    RangeWant,
    Want,
)
from overlay.core.types import Epoch, Load, Version
from overlay.net import codec
from overlay.sim.wire_size import FRAMING_BYTES, wire_size
from tests.unit.overlay.core.harness import ADDRESS, ME, OTHER, PEER, Harness, delta, heads, hello, snapshot

NODE = Harness()
RANGES = NODE.core.own._digester.ranges(delta((0, 1), list(range(50)), []).added)
LOAD = Load(Epoch(10**12), 300, 3, 0, 70_000, 0.001, 0.02, 512, 9_000, 128, draining=False, accepting=True)
MESSAGES: list[Message] = [
    hello(PEER, http_url="http://10.0.0.1:8080"),
    Members(tuple(Member(each, MemberState.SUSPECT, 10**12, (ADDRESS[each],), ME) for each in (OTHER, PEER))),
    Members(()),
    heads(NODE.core, PEER, 300, {1, 2, 3}),
    heads(NODE.core, PEER, 300, {1, 2, 3}, relayed=True),
    Want(PEER, Epoch(10**12), Version(77)),
    Want(PEER, Epoch(0), Version(0)),
    delta((300, 301), list(range(40)), [1, 2], epoch=10**12),
    delta((0, 1), [1], []),
    snapshot(5, list(range(3000)), chunk=2, chunks=3, origin=OTHER),
    RangeDigests(None, Epoch(9), Version(1), RANGES),
    RangeWant(PEER, Epoch(9), Version(1), b"\0\1\2"),
    RangeHashes(None, Epoch(9), Version(1), b"\0", delta((0, 1), [1, 2], []).added),
    Filter(OTHER, Epoch(9), Version(1), 3, 4, b"\1" * 1024, b"model", b"s" * 64, b"k" * 32, b"c" * 700),
    LoadReport(None, LOAD),
    LoadReport(None, replace(LOAD, sequence=0, accepting=False, draining=True)),
    Probe(5),
    ProbeRequest(500, OTHER),
    Ack(5, 10**12),
    Nack(70_000),
    Bye(ByeReason.PROTOCOL, "why"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_size_is_what_the_codec_writes(message: Message) -> None:
    assert wire_size(message) == FRAMING_BYTES + len(codec.encode(message).SerializeToString())
