"""Beliefs about members, on a core driven by hand."""

from __future__ import annotations

import pytest

from overlay.core.events import Leave, LinkDown, LinkId, LocalLoad, LoopLag, PeerLoad
from overlay.core.messages import (
    Ack,
    Bye,
    ByeReason,
    LoadReport,
    Member,
    Members,
    MemberState,
    Nack,
    Probe,
    ProbeRequest,
)
from overlay.core.types import Epoch, Load, NodeId
from overlay.core.views import PeerState
from tests.unit.overlay.core.harness import ADDRESS, HIGHEST, LOWEST, ME, OTHER, PEER, Harness, heads


def _mesh(*peers: NodeId) -> Harness:
    node = Harness()
    for link, peer in enumerate(peers, start=1):
        node.connect(link, peer)
    node.clear()
    return node


def _state(node: Harness, peer: NodeId) -> PeerState | None:
    return {view.node_id: view.state for view in node.core.peers(node.now)}.get(peer)


def _news(peer: NodeId, state: MemberState, incarnation: int, reporter: NodeId | None = None) -> Members:
    return Members((Member(peer, state, incarnation, (ADDRESS[peer],), reporter),))


def test_rumours_of_its_own_death_are_refuted_at_once() -> None:
    node = _mesh(PEER)
    before = node.core.membership.incarnation
    node.receive(1, _news(ME, MemberState.SUSPECT, before, PEER))
    node.run(0.3)
    refuted = [news for members in node.sent(Members) for news in members.members if news.node_id == ME]
    assert {(news.state, news.incarnation) for news in refuted} == {(MemberState.ALIVE, before + 1)}
    node.clear()
    node.receive(1, _news(ME, MemberState.DEAD, before, PEER))  # old news
    assert node.core.membership.incarnation == before + 1


@pytest.mark.parametrize(
    ("state", "incarnation", "believed"),
    [
        (MemberState.SUSPECT, 9, PeerState.ALIVE),
        (MemberState.SUSPECT, 10, PeerState.SUSPECT),
        (MemberState.DEAD, 9, PeerState.ALIVE),
        (MemberState.ALIVE, 99, PeerState.ALIVE),
    ],
)
def test_the_higher_incarnation_wins(state: MemberState, incarnation: int, believed: PeerState) -> None:
    node = _mesh(PEER, OTHER)
    node.receive(2, _news(PEER, state, incarnation, OTHER))
    assert _state(node, PEER) is believed


def test_hearsay_kills_nobody_who_is_connected_here() -> None:
    node = _mesh(PEER, OTHER)
    node.receive(2, _news(PEER, MemberState.DEAD, 10, OTHER))
    assert _state(node, PEER) is PeerState.SUSPECT
    told = [members.members[0] for members in node.sent(Members, link=1)]
    assert told[0].node_id == PEER  # so that it can refute
    node.receive(1, _news(PEER, MemberState.ALIVE, 11))
    assert _state(node, PEER) is PeerState.ALIVE


def test_hearsay_of_a_death_is_believed_without_a_stream() -> None:
    node = _mesh(PEER, OTHER)
    node.tell(LinkDown(LinkId(1)))
    node.receive(2, _news(PEER, MemberState.DEAD, 10, OTHER))
    assert _state(node, PEER) is PeerState.DEAD
    node.receive(2, _news(PEER, MemberState.ALIVE, 10, OTHER))
    assert _state(node, PEER) is PeerState.DEAD
    node.receive(2, _news(PEER, MemberState.ALIVE, 11, OTHER))
    assert _state(node, PEER) is PeerState.CANDIDATE  # until it says Hello itself


def test_a_silent_peer_is_probed_through_others_suspected_and_declared_dead() -> None:
    node = _mesh(PEER, OTHER)
    node.run(3.0)
    assert node.sent(Probe, link=1)
    assert {request.target for request in node.sent(ProbeRequest, link=2)} == {PEER}
    assert _state(node, PEER) is PeerState.SUSPECT
    node.run(30.0)
    assert _state(node, PEER) is PeerState.DEAD
    assert (1, ByeReason.UNSPECIFIED) in node.byes()


def _answer(node: Harness, seconds: float, link: int) -> None:
    """The peer of `link` answers probes of itself, and Nacks those of others."""
    end = node.now + seconds
    while node.now < end:
        node.clear()
        node.run(0.1, living=(link,))
        for request in node.sent(ProbeRequest, link):
            node.receive(link, Nack(request.sequence))


def test_a_peer_that_answers_is_never_suspected_and_its_round_trip_is_measured() -> None:
    node = _mesh(PEER)
    _answer(node, 30.0, 1)
    (view,) = node.core.peers(node.now)
    assert view.state is PeerState.ALIVE
    assert view.rtt_s is not None
    assert 0.0 <= view.rtt_s <= 0.1


def test_nacks_blame_the_target_and_their_absence_this_node() -> None:
    node = _mesh(PEER, OTHER)
    _answer(node, 3.0, 2)
    assert _state(node, PEER) is PeerState.SUSPECT
    assert node.core.detector.local_health == 0
    node = _mesh(PEER, OTHER)
    node.run(5.0)
    assert node.core.detector.local_health > 0


def test_a_node_that_lags_suspects_nobody() -> None:
    node = _mesh(PEER, OTHER)
    for _ in range(20):
        node.run(0.4)
        node.tell(LoopLag(0.5))
    assert _state(node, PEER) is PeerState.ALIVE
    assert node.core.detector.patience() > node.core.options.timing.ack_s


def test_a_process_that_was_stopped_declares_nobody_dead() -> None:
    node = _mesh(PEER, OTHER)
    node.run(3.0)
    assert _state(node, PEER) is PeerState.SUSPECT
    node.now += 60.0
    node.run(0.1)
    assert _state(node, PEER) is PeerState.SUSPECT


def test_probes_for_others_are_passed_on_and_answered() -> None:
    node = _mesh(PEER, OTHER)
    node.receive(1, ProbeRequest(77, OTHER))
    probe = node.sent(Probe, link=2)[-1]
    node.receive(2, Ack(probe.sequence, 12))
    assert node.sent(Ack, link=1) == [Ack(77, 12)]
    node.receive(1, ProbeRequest(78, OTHER))
    node.run(0.5)
    assert node.sent(Nack, link=1) == [Nack(78)]
    node.receive(1, ProbeRequest(79, HIGHEST))
    assert node.sent(Nack, link=1) == [Nack(78), Nack(79)]


def test_an_ack_from_the_wrong_peer_proves_nothing() -> None:
    node = _mesh(PEER, OTHER, HIGHEST, LOWEST)
    node.clear()
    for _ in range(100):
        node.run(0.1)
        for probe in node.sent(Probe, link=1):
            node.receive(2, Ack(probe.sequence, 10**6))
        node.clear()
    record = node.core.table.get(PEER)
    assert record is not None
    assert record.incarnation == 10
    assert record.state is not PeerState.ALIVE


def test_impossible_news_is_a_violation() -> None:
    node = _mesh(PEER)
    node.receive(1, _news(OTHER, MemberState.ALIVE, 1 << 63))
    assert node.byes() == [(1, ByeReason.PROTOCOL)]


def test_leaving_is_told_on_every_stream_and_is_the_end() -> None:
    node = _mesh(PEER, OTHER)
    node.tell(Leave())
    assert node.byes() == [(1, ByeReason.LEAVING), (2, ByeReason.LEAVING)]
    assert node.receive(1, Probe(1)) == []
    assert node.core.match([]) == {}


def test_load_is_told_on_change_but_not_too_often_and_at_least_once_a_second() -> None:
    node = _mesh(PEER)
    node.run(1.5)
    node.clear()
    for running in range(1, 11):
        node.tell(LocalLoad(Load(Epoch(0), 0, running=running)))
        node.run(0.02)
    node.run(0.2)
    reports = node.sent(LoadReport)
    assert 2 <= len(reports) <= 4
    assert reports[-1].load.running == 10
    assert reports[-1].load == node.core.own_load()
    node.clear()
    node.run(10.0, living=(1,))
    assert 9 <= len(node.sent(LoadReport)) <= 11


def test_older_load_reports_are_dropped() -> None:
    node = _mesh(PEER)
    for epoch, sequence, running in [(5, 3, 1), (5, 2, 2), (4, 9, 3)]:
        node.receive(1, LoadReport(None, Load(Epoch(epoch), sequence, running=running)))
    node.run(0.5)
    node.tell(PeerLoad(PEER, Load(Epoch(5), 1, running=4)))
    (view,) = node.core.peers(node.now)
    assert view.load is not None
    assert view.load.running == 1
    assert view.load_age_s == pytest.approx(0.5)
    node.tell(PeerLoad(PEER, Load(Epoch(6), 0, running=5)))
    (view,) = node.core.peers(node.now)
    assert view.load is not None
    assert (view.load.running, view.load_age_s) == (5, 0.0)


def test_nobody_reports_the_load_of_others() -> None:
    node = _mesh(PEER, OTHER)
    node.receive(2, LoadReport(PEER, Load(Epoch(9), 9, running=99)))
    views = {view.node_id: view for view in node.core.peers(node.now)}
    assert views[PEER].load is None


def test_goodbye_without_a_hello_is_no_departure() -> None:
    node = _mesh(PEER)
    node.tell(LinkDown(LinkId(1)))
    node.receive(1, Bye(ByeReason.LEAVING))
    assert _state(node, PEER) is PeerState.ALIVE


def test_a_peer_that_is_heard_is_probed_only_for_its_round_trip() -> None:
    node = _mesh(PEER)
    for sequence in range(200):
        node.run(0.5, living=(1,))
        node.receive(1, LoadReport(None, Load(Epoch(10), sequence)))
    assert 8 <= len(node.sent(Probe, link=1)) <= 12
    assert _state(node, PEER) is PeerState.ALIVE
    node.clear()
    node.run(3.0)
    assert len(node.sent(Probe, link=1)) >= 2
    assert _state(node, PEER) is PeerState.SUSPECT


def test_being_heard_cures_a_node_of_doubting_itself() -> None:
    node = _mesh(PEER)
    node.tell(LoopLag(5.0))
    assert node.core.detector.local_health > 3
    for sequence in range(40):
        node.run(0.5, living=(1,))
        node.receive(1, LoadReport(None, Load(Epoch(10), sequence)))
    assert node.core.detector.local_health == 0


def test_a_full_table_makes_room_for_those_who_say_hello_and_forgets_all_about_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overlay.core.members.MAX_MEMBERS", 2)
    node = _mesh(PEER)
    node.receive(1, heads(node.core, PEER, 3, {1}))
    assert PEER in node.core.follower.replicas
    node.receive(1, Bye(ByeReason.LEAVING))
    for link, peer in enumerate((OTHER, HIGHEST, LOWEST), start=2):
        node.connect(link, peer)
    assert _state(node, PEER) is None
    assert [_state(node, peer) for peer in (OTHER, HIGHEST)] == [PeerState.ALIVE] * 2
    assert _state(node, LOWEST) is None  # the table is full of members
    assert PEER not in node.core.follower.replicas
    assert node.core.loads.load_of(PEER) is None
    assert node.core.table.size() == 3
