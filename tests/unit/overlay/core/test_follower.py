"""The rules of anti-entropy, one by one, on a core driven by hand."""

from __future__ import annotations

from dataclasses import replace

from overlay.core.events import LinkUp, LocalBlocks, LocalCleared
from overlay.core.hashes import to_array
from overlay.core.limits import MAX_HASHES_PER_FRAME
from overlay.core.messages import (
    Bye,
    ByeReason,
    Delta,
    Heads,
    RangeDigests,
    RangeHashes,
    RangeWant,
    Snapshot,
    Want,
)
from overlay.core.types import BlockHash, Epoch, Version
from tests.unit.overlay.core.harness import OTHER, PEER, Harness, delta, heads, snapshot


def _following(version: int = 3, blocks: tuple[int, ...] = (1, 2, 3)) -> Harness:
    node = Harness()
    node.connect(1)
    node.receive(1, heads(node.core, PEER, version, set(blocks)))
    node.receive(1, snapshot(version, list(blocks)))
    node.clear()
    return node


def test_a_head_that_is_news_is_asked_for() -> None:
    node = Harness()
    node.connect(1)
    node.receive(1, heads(node.core, PEER, 3, {1, 2}))
    assert node.sent(Want) == [Want(PEER, Epoch(10), Version(0))]
    node.receive(1, snapshot(3, [1, 2]))
    assert node.held() == {1, 2}


def test_changes_apply_only_where_they_continue() -> None:
    node = _following()
    node.receive(1, delta((3, 4), [4], [1]))
    assert node.held() == {2, 3, 4}
    node.receive(1, delta((3, 4), [4], [1]))  # a duplicate
    node.receive(1, delta((1, 3), [1], []))  # old
    assert node.held() == {2, 3, 4}
    node.receive(1, delta((2, 6), [6], [3]))  # a longer span
    assert node.held() == {2, 4, 6}
    assert node.sent(Want) == []
    node.receive(1, delta((8, 9), [9], []))  # a gap
    assert node.held() == {2, 4, 6}
    assert node.sent(Want) == [Want(PEER, Epoch(10), Version(6))]


def test_a_higher_epoch_starts_over_and_a_lower_one_is_dropped() -> None:
    node = _following()
    node.receive(1, delta((0, 1), [7], [], epoch=11))
    assert node.held() == {7}
    node.receive(1, delta((3, 4), [4], [], epoch=10))
    node.receive(1, snapshot(99, [5], epoch=10))
    node.receive(1, heads(node.core, PEER, 99, {5}, epoch=10))
    assert node.held() == {7}


def test_a_new_epoch_clears_even_before_its_changes_come() -> None:
    node = _following()
    node.receive(1, heads(node.core, PEER, 2, {8}, epoch=11))
    assert node.held() == set()
    assert node.core.match([BlockHash(1)]) == {}


def test_snapshot_chunks_are_swapped_in_whole() -> None:
    node = _following()
    node.receive(1, snapshot(5, [1, 20], chunk=1, chunks=3))
    node.receive(1, snapshot(5, [30], chunk=2, chunks=3))
    node.receive(1, snapshot(5, [30], chunk=2, chunks=3))
    assert node.held() == {1, 2, 3}
    node.receive(1, delta((3, 4), [4], []))  # the old set still follows
    assert node.held() == {1, 2, 3, 4}
    node.receive(1, snapshot(5, [10], chunk=0, chunks=3))
    assert node.held() == {1, 10, 20, 30}


def test_chunks_of_different_versions_never_mix() -> None:
    node = _following()
    node.receive(1, snapshot(5, [50], chunk=0, chunks=2))
    node.receive(1, snapshot(6, [61], chunk=1, chunks=2))
    assert node.held() == {1, 2, 3}
    node.receive(1, snapshot(5, [51], chunk=1, chunks=2))
    assert node.held() == {1, 2, 3}
    node.receive(1, snapshot(6, [60], chunk=0, chunks=2))
    assert node.held() == {60, 61}


def test_an_unanswered_want_is_repeated() -> None:
    node = _following()
    node.receive(1, heads(node.core, PEER, 4, {1}))
    node.run(3.0)
    assert len(node.sent(Want)) >= 3


def test_a_relay_is_believed_only_with_the_origins_signature() -> None:
    node = Harness()
    node.connect(1, OTHER)
    node.connect(2, PEER)
    node.receive(1, snapshot(3, [666], origin=PEER))  # no head at all
    assert node.held() == set()
    node.receive(1, heads(node.core, PEER, 3, {1, 2}, relayed=True))
    node.receive(1, snapshot(3, [666], origin=PEER))  # not what was signed
    assert node.held() == set()
    node.receive(1, snapshot(3, [1, 2], origin=PEER))
    assert node.held() == {1, 2}
    node.receive(1, delta((3, 4), [666], [], origin=PEER))
    assert node.held() == {1, 2}
    node.receive(1, heads(node.core, PEER, 4, {1, 2, 4}, relayed=True))
    node.receive(1, delta((3, 4), [4], [], origin=PEER))
    assert node.held() == {1, 2, 4}
    assert node.byes() == []


def test_a_forged_head_changes_nothing() -> None:
    node = _following()
    node.connect(2, OTHER)
    (genuine,) = heads(node.core, PEER, 9, {9}, relayed=True).heads
    (forged,) = heads(node.core, OTHER, 9, {9}, relayed=True).heads
    for head in (forged, genuine):
        node.clear()
        node.receive(2, Heads((replace(head, origin=PEER, digest_high=head.digest_high ^ 1),)))
        assert node.sent(Want) == []


def test_an_origin_that_signs_wrongly_is_cut_off() -> None:
    node = _following()
    (head,) = heads(node.core, OTHER, 9, {9}).heads
    node.receive(1, Heads((head,)))
    assert node.byes() == [(1, ByeReason.PROTOCOL)]


def test_unequal_digests_are_repaired_by_ranges() -> None:
    blocks = {block << 48 for block in range(1, 2000)}
    node = _following(3, tuple(blocks))
    node.core.index.remove(PEER, [5 << 48])  # a defect of this node
    node.core.follower.replicas[PEER].digest = node.core.own._digester.digest(to_array(blocks - {5 << 48}))
    node.receive(1, heads(node.core, PEER, 3, blocks))
    assert node.sent(RangeWant) == [RangeWant(PEER, Epoch(10), Version(3), b"")]
    node.clear()
    digests = node.core.own._digester.ranges(to_array(blocks))
    node.receive(1, RangeDigests(None, Epoch(10), Version(3), digests))
    assert node.sent(RangeWant) == [RangeWant(PEER, Epoch(10), Version(3), b"\0")]
    part = to_array(sorted(block for block in blocks if block >> 56 == 0))
    node.receive(1, RangeHashes(None, Epoch(10), Version(3), b"\0", part))
    assert node.held() == blocks


def test_a_repair_that_does_not_help_fetches_the_whole_set() -> None:
    node = _following()
    for _ in range(4):
        node.receive(1, heads(node.core, PEER, 3, {1, 2, 3, 4}))
        node.run(1.0)
    assert Want(PEER, Epoch(0), Version(0)) in node.sent(Want)
    node.receive(1, snapshot(3, [1, 2, 3, 4]))
    assert node.held() == {1, 2, 3, 4}


def test_the_largest_set_is_left_out_when_the_index_is_full() -> None:
    node = Harness(index_bytes=100_000)
    node.connect(1)
    node.connect(2, OTHER)
    node.receive(1, snapshot(1, list(range(100))))
    node.receive(2, snapshot(1, list(range(1000, 5000))))
    assert len(node.held(PEER)) == 100
    assert node.held(OTHER) == set()
    assert node.core.index.bytes <= 100_000
    node.receive(2, delta((1, 2), [5], []))
    assert node.held(OTHER) == set()


def test_wants_are_served_by_delta_or_snapshot() -> None:
    node = Harness()
    node.connect(1)
    for first in (0, 10):
        node.tell(LocalBlocks(stored=[BlockHash(block) for block in range(first, first + 10)]))
        node.run(2.0)
    pushed = node.sent(Delta)
    assert [(each.version_from, each.version_to, len(each.added)) for each in pushed] == [
        (0, 1, 10),
        (1, 2, 10),
    ]
    node.clear()
    epoch = node.core.own.epoch
    node.receive(1, Want(node.core.options.node_id, epoch, Version(1)))
    (change,) = node.sent(Delta)
    assert (change.version_from, change.version_to) == (1, 2)
    node.receive(1, Want(node.core.options.node_id, Epoch(0), Version(0)))
    (whole,) = node.sent(Snapshot)
    assert (whole.version, sorted(whole.hashes.tolist())) == (2, list(range(20)))


def test_a_cleared_cache_is_a_new_epoch_told_at_once() -> None:
    node = Harness()
    node.connect(1)
    node.tell(LocalBlocks(stored=[BlockHash(1)]))
    node.run(1.0)
    epoch = node.core.own.epoch
    node.clear()
    node.tell(LocalCleared())
    (told,) = node.sent(Heads)
    assert (told.heads[0].epoch, told.heads[0].version, told.heads[0].count) == (epoch + 1, 0, 0)
    assert node.persisted()["epoch"] == str(epoch + 1).encode()
    assert node.core.own_load().epoch == epoch + 1


def test_a_huge_change_goes_as_a_snapshot_of_bounded_frames() -> None:
    node = Harness()
    node.connect(1)
    count = 2 * MAX_HASHES_PER_FRAME + 5
    node.tell(LocalBlocks(stored=[BlockHash(block) for block in range(count)]))
    node.run(1.0)
    assert node.sent(Delta) == []
    node.receive(1, Want(node.core.options.node_id, node.core.own.epoch, Version(0)))
    node.run(1.0)
    parts = node.sent(Snapshot)
    assert [(part.chunk, part.chunks) for part in parts] == [(0, 3), (1, 3), (2, 3)]
    assert all(len(part.hashes) <= MAX_HASHES_PER_FRAME for part in parts)
    assert sum(len(part.hashes) for part in parts) == count


def test_no_answer_before_hello() -> None:
    node = Harness()
    node.tell(LinkUp(link=1, peer=PEER))  # type: ignore[arg-type]  # a bare number will do
    node.receive(1, Want(node.core.options.node_id, Epoch(0), Version(0)))
    assert [bye.reason for bye in node.sent(Bye)] == [ByeReason.PROTOCOL]


def test_the_departed_match_nothing() -> None:
    node = _following()
    assert node.core.match([BlockHash(1), BlockHash(2)]) == {PEER: 2}
    node.receive(1, Bye(ByeReason.LEAVING))
    assert node.core.match([BlockHash(1), BlockHash(2)]) == {}
    assert len(node.core.index) == 0


def test_an_origin_that_forgot_its_epoch_is_reminded_until_it_listens() -> None:
    node = _following()
    for _ in range(2):
        node.clear()
        node.receive(1, heads(node.core, PEER, 1, {1}, epoch=7))
        (reminder,) = node.sent(Heads, link=1)
        assert (reminder.heads[0].origin, reminder.heads[0].epoch) == (PEER, 10)
    assert node.held() == {1, 2, 3}


def _relay() -> Harness:
    """OTHER asks a node that follows PEER."""
    node = _following()
    node.connect(2, OTHER)
    node.receive(1, delta((3, 4), [4], [1]))
    node.receive(1, delta((4, 5), [5, 1], [2]))
    node.receive(1, heads(node.core, PEER, 5, {1, 3, 4, 5}))
    node.clear()
    return node


def test_a_relay_passes_on_only_what_changed() -> None:
    node = _relay()
    node.receive(2, Want(PEER, Epoch(10), Version(3)))
    (head,), (change,) = node.sent(Heads, link=2), node.sent(Delta, link=2)
    assert (head.heads[0].origin, head.heads[0].version) == (PEER, 5)
    assert (change.origin, change.version_from, change.version_to) == (PEER, 3, 5)
    assert (set(change.added.tolist()), set(change.removed.tolist())) == ({1, 4, 5}, {2})
    assert node.sent(Snapshot) == []


def test_a_relay_that_does_not_remember_passes_on_the_whole_set() -> None:
    for want in (Want(PEER, Epoch(10), Version(2)), Want(PEER, Epoch(9), Version(4))):
        node = _relay()
        node.receive(2, want)
        (whole,) = node.sent(Snapshot, link=2)
        assert (whole.version, set(whole.hashes.tolist())) == (5, {1, 3, 4, 5})
        assert node.sent(Delta) == []


def test_what_a_relay_owes_is_paid_once_the_origin_has_signed_it() -> None:
    node = _relay()
    node.receive(1, delta((5, 6), [6], []))
    node.receive(2, Want(PEER, Epoch(10), Version(5)))
    assert node.sent(Delta) == []
    node.receive(1, heads(node.core, PEER, 6, {1, 3, 4, 5, 6}))
    (change,) = node.sent(Delta, link=2)
    assert (change.version_from, change.version_to, change.added.tolist()) == (5, 6, [6])


def test_relayed_chunks_are_staged_only_as_far_as_the_origin_signed() -> None:
    node = _following()
    node.connect(2, OTHER)
    replica = node.core.follower.replicas[PEER]
    node.receive(2, snapshot(9, list(range(1000)), chunk=0, chunks=64, origin=PEER))
    assert replica.staged == 0
    node.receive(2, heads(node.core, PEER, 9, set(range(10)), relayed=True))
    node.receive(2, snapshot(9, list(range(1000)), chunk=0, chunks=64, origin=PEER))
    assert replica.staged == 0
    node.receive(2, snapshot(9, list(range(5)), chunk=0, chunks=2, origin=PEER))
    assert replica.staged == 5
    node.receive(2, snapshot(9, list(range(5, 10)), chunk=1, chunks=2, origin=PEER))
    assert node.held() == set(range(10))


def test_what_is_staged_counts_towards_the_budget() -> None:
    node = Harness(index_bytes=1 << 20)
    node.connect(1)
    for chunk in range(60):
        first = chunk * 10_000
        node.receive(1, snapshot(1, list(range(first, first + 10_000)), chunk=chunk, chunks=64))
        staged = sum(replica.staged for replica in node.core.follower.replicas.values())
        assert staged * 8 <= 1 << 20
    assert node.byes() == []
