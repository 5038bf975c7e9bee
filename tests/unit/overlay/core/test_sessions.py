"""Streams: Hello, duplicates, self, and peers that break the rules."""

from __future__ import annotations

import pytest

from overlay.core.events import LinkDown, LinkId, LinkUp, MalformedFrame
from overlay.core.limits import MAX_LINKS_PER_PEER
from overlay.core.messages import Bye, ByeReason, Hello, Message, Probe, Want
from overlay.core.types import Epoch, Version
from overlay.core.views import PeerState
from tests.unit.overlay.core.harness import (
    ADDRESS,
    HIGHEST,
    LOWEST,
    ME,
    OTHER,
    PEER,
    Harness,
    delta,
    hello,
    snapshot,
)


def test_hello_comes_first_and_an_answer_makes_a_member() -> None:
    node = Harness()
    node.tell(LinkUp(LinkId(1), PEER))
    (first,) = node.sent(Hello)
    assert (first.node_id, first.epoch, first.addresses) == (ME, 1000, (ADDRESS[ME],))
    assert node.core.peers(node.now) == ()
    node.receive(1, hello(PEER))
    (view,) = node.core.peers(node.now)
    assert (view.node_id, view.state, view.connected) == (PEER, PeerState.ALIVE, True)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"major": 2}, ByeReason.VERSION),
        ({"node_id": OTHER}, ByeReason.IDENTITY),
        ({"gossip_key": b"another key"}, ByeReason.IDENTITY),
        ({"gossip_key_certificate": b"forged"}, ByeReason.IDENTITY),
        ({"epoch": Epoch(0)}, ByeReason.PROTOCOL),
        ({"epoch": Epoch(1 << 63)}, ByeReason.PROTOCOL),
        ({"incarnation": 1 << 63}, ByeReason.PROTOCOL),
    ],
)
def test_a_wrong_hello_ends_the_stream(fields: dict[str, object], reason: ByeReason) -> None:
    node = Harness()
    node.connect(1, PEER, None, **fields)
    assert node.byes() == [(1, reason)]
    assert not any(view.state is PeerState.ALIVE for view in node.core.peers(node.now))


def test_a_newer_minor_version_is_welcome() -> None:
    node = Harness()
    node.connect(1, minor=99)
    assert node.byes() == []


def test_silence_instead_of_a_hello_ends_the_stream() -> None:
    node = Harness()
    node.tell(LinkUp(LinkId(1), PEER))
    node.run(6.0)
    assert node.byes() == [(1, ByeReason.PROTOCOL)]


@pytest.mark.parametrize(
    "message",
    [
        delta((5, 3), [1], []),
        delta((0, 1), [1], [], epoch=0),
        snapshot(1, [1], chunk=1, chunks=1),
        snapshot(1, [1], chunk=0, chunks=0),
        snapshot(1, [1], chunk=0, chunks=65),
    ],
    ids=["span", "epoch", "chunk", "no chunks", "chunks"],
)
def test_impossible_frames_end_every_stream_and_ban_the_peer_for_a_while(message: Message) -> None:
    node = Harness()
    node.connect(1)
    node.receive(1, message)
    assert node.byes() == [(1, ByeReason.PROTOCOL)]
    node.clear()
    node.tell(LinkUp(LinkId(2), PEER))
    assert node.byes() == [(2, ByeReason.PROTOCOL)]
    node.run(node.core.options.timing.ban_s + 1)
    node.clear()
    node.tell(LinkUp(LinkId(3), PEER))
    assert node.byes() == []


def test_frames_before_the_hello_and_malformed_ones_are_violations() -> None:
    node = Harness()
    node.tell(LinkUp(LinkId(1), PEER))
    node.receive(1, Probe(1))
    node.connect(2, OTHER)
    node.tell(MalformedFrame(LinkId(2), "not a frame"))
    assert node.byes() == [(1, ByeReason.PROTOCOL), (2, ByeReason.PROTOCOL)]


@pytest.mark.parametrize("mine_first", [True, False])
@pytest.mark.parametrize("peer", [LOWEST, HIGHEST])
def test_of_two_streams_the_one_dialled_by_the_lower_id_stays(peer: str, mine_first: bool) -> None:
    node = Harness()
    mine, theirs = 1, 2
    who = LOWEST if peer == LOWEST else HIGHEST
    order = [(mine, ADDRESS[who]), (theirs, None)]
    for link, dialled in order if mine_first else reversed(order):
        node.connect(link, who, dialled)
    keep, drop = (mine, theirs) if who > ME else (theirs, mine)
    assert node.byes() == [(drop, ByeReason.DUPLICATE)]
    active = node.core.links.active(who)
    assert active is not None
    assert active.id == keep


def test_no_stream_is_dropped_before_both_are_ready() -> None:
    node = Harness()
    node.connect(1, LOWEST, ADDRESS[LOWEST])
    node.tell(LinkUp(LinkId(2), LOWEST))
    assert node.byes() == []
    node.receive(2, hello(LOWEST))
    assert node.byes() == [(1, ByeReason.DUPLICATE)]


def test_a_peer_that_dialled_twice_keeps_the_later_stream() -> None:
    node = Harness()
    node.connect(1)
    node.connect(2)
    assert node.byes() == [(1, ByeReason.DUPLICATE)]


def test_a_restarted_peer_is_not_mistaken_for_its_old_stream() -> None:
    node = Harness()
    node.connect(1, LOWEST)  # this one would win by the rule of ids
    node.connect(2, LOWEST, ADDRESS[LOWEST], epoch=Epoch(11), incarnation=11)
    assert node.byes() == [(1, ByeReason.DUPLICATE)]


def test_streams_per_peer_are_bounded() -> None:
    node = Harness()
    for link in range(10):
        node.tell(LinkUp(LinkId(link), PEER))
    assert len(node.core.links) == MAX_LINKS_PER_PEER


def test_losing_one_of_two_streams_is_no_loss_of_the_peer() -> None:
    node = Harness()
    node.connect(1, HIGHEST)
    node.tell(LinkUp(LinkId(2), HIGHEST, ADDRESS[HIGHEST]))
    node.tell(LinkDown(LinkId(1)))
    node.receive(2, hello(HIGHEST))
    (view,) = node.core.peers(node.now)
    assert view.connected


def test_its_own_address_is_dialled_once() -> None:
    node = Harness(seeds=(ADDRESS[OTHER],))
    node.run(0.0)
    assert [dial.address for dial in node.dials()] == [ADDRESS[OTHER]]
    node.tell(LinkUp(LinkId(1), ME, ADDRESS[OTHER]))
    node.tell(LinkUp(LinkId(2), ME))
    assert node.byes() == [(1, ByeReason.SELF), (2, ByeReason.SELF)]
    node.clear()
    node.run(100.0)
    assert node.dials() == []
    assert node.core.peers(node.now) == ()


def test_a_peer_that_leaves_is_not_dialled_any_more() -> None:
    node = Harness()
    node.connect(1)
    node.receive(1, Bye(ByeReason.LEAVING))
    node.clear()
    node.run(60.0)
    assert node.dials() == []
    assert [view.state for view in node.core.peers(node.now)] == [PeerState.LEFT]


def test_another_model_makes_a_member_whose_set_is_not_followed() -> None:
    node = Harness()
    node.connect(1, model=b"another")
    node.receive(1, delta((0, 1), [7], []))
    (view,) = node.core.peers(node.now)
    assert (view.state, view.cached_blocks) == (PeerState.ALIVE, 0)
    assert len(node.core.index) == 0


def test_asking_for_a_set_nobody_has_is_answered_with_nothing() -> None:
    node = Harness()
    node.connect(1)
    node.clear()
    assert node.receive(1, Want(OTHER, Epoch(0), Version(0))) == []
