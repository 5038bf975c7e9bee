"""Whom a node dials, and how patiently."""

from __future__ import annotations

from itertools import pairwise

from overlay.core.events import AddressHint, DialFailed, HintSource, LinkDown, LinkId
from overlay.core.messages import Member, Members, MemberState
from overlay.core.types import Address
from overlay.core.views import PeerState
from tests.unit.overlay.core.harness import ADDRESS, HIGHEST, LOWEST, ME, OTHER, PEER, Harness

SEED = Address("seed", 7070)


def _refuse_for(node: Harness, seconds: float) -> list[float]:
    """Lets every dial fail at once; when they were made."""
    end, times = node.now + seconds, []
    while node.now < end:
        node.clear()
        node.run(0.05)
        for dial in node.dials():
            times.append(node.now)
            node.tell(DialFailed(dial.address, dial.node_id, "refused"))
    return times


def test_a_seed_is_dialled_at_once_often_at_first_and_for_ever() -> None:
    node = Harness(seeds=(SEED,))
    times = _refuse_for(node, 3 * 3600.0)
    assert times[0] <= 100.1
    assert len([at for at in times if at < 103.0]) >= 3
    waits = [later - sooner for sooner, later in pairwise(times)]
    assert max(waits) <= node.core.options.timing.dial_max_s + 0.2
    assert times[-1] > 100.0 + 3 * 3600.0 - 20.0


def test_a_seed_that_connects_is_left_alone_until_it_is_lost() -> None:
    node = Harness(seeds=(SEED,))
    node.run(0.0)
    node.connect(1, PEER, SEED)
    node.clear()
    node.run(60.0, living=(1,))
    assert node.dials() == []
    node.tell(LinkDown(LinkId(1)))
    node.run(0.5)
    assert {dial.address for dial in node.dials()} == {SEED, ADDRESS[PEER]}


def test_all_addresses_of_a_node_are_tried_before_waiting() -> None:
    node = Harness()
    node.connect(1)
    bad, good = Address("10.9.9.9", 1), Address("10.9.9.8", 1)
    news = Member(HIGHEST, MemberState.ALIVE, 3, (bad, good))
    node.clear()
    node.receive(1, Members((news,)))
    node.run(0.0)
    node.tell(DialFailed(bad, HIGHEST, "unreachable"))
    node.run(0.0)
    assert [(dial.address, dial.node_id) for dial in node.dials()] == [(bad, HIGHEST), (good, HIGHEST)]


def test_the_lower_id_dials_first() -> None:
    node = Harness()
    node.connect(1)
    node.clear()
    for peer in (LOWEST, HIGHEST):
        node.receive(1, Members((Member(peer, MemberState.ALIVE, 3, (ADDRESS[peer],)),)))
    node.run(0.2)
    assert [dial.node_id for dial in node.dials()] == [HIGHEST]
    node.run(1.0)
    assert [dial.node_id for dial in node.dials()] == [HIGHEST, LOWEST]


def test_second_hand_members_are_candidates_and_forgotten_if_they_never_answer() -> None:
    node = Harness()
    node.connect(1)
    node.receive(1, Members((Member(OTHER, MemberState.ALIVE, 3, (ADDRESS[OTHER],)),)))
    states = {view.node_id: view.state for view in node.core.peers(node.now)}
    assert states[OTHER] is PeerState.CANDIDATE
    times = _refuse_for(node, node.core.options.timing.candidate_s + 30)
    assert OTHER not in {view.node_id for view in node.core.peers(node.now)}
    assert times[-1] < 100 + node.core.options.timing.candidate_s + 20
    assert all(news.node_id != OTHER for members in node.sent(Members) for news in members.members)


def test_a_hint_without_an_answer_is_given_up() -> None:
    node = Harness()
    node.tell(AddressHint(Address("mdns", 1), None, HintSource.MDNS))
    times = _refuse_for(node, 2000.0)
    assert len(times) > 0
    assert times[-1] < 100 + node.core.options.timing.candidate_s + 20


def test_a_hint_of_itself_is_ignored_and_a_known_peer_learns_an_address() -> None:
    node = Harness()
    node.tell(AddressHint(Address("mine", 1), ME, HintSource.MDNS))
    node.tell(AddressHint(Address("theirs", 1), HIGHEST, HintSource.MDNS))
    node.run(0.1)
    assert [(dial.address, dial.node_id) for dial in node.dials()] == [(Address("theirs", 1), HIGHEST)]


def test_dials_at_once_are_bounded() -> None:
    node = Harness(seeds=tuple(Address("host", port) for port in range(1, 100)))
    node.run(1.0)
    assert len(node.dials()) <= 16


def test_a_peer_that_refuses_after_the_handshake_is_not_hammered() -> None:
    node = Harness(seeds=(SEED,))
    dials = 0
    for link in range(1, 1000):
        node.clear()
        node.run(0.05)
        for dial in node.dials():
            dials += 1
            node.connect(link, PEER, dial.address, major=9)
    assert dials <= 20
