"""Each rule of the protocol, broken on purpose: a test must notice, or the rule isn't tested.

A mutant is the change it makes and the check, taken from the other tests, that catches it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overlay.core import dialer, membership, own_set
from overlay.core.changes import Change, History
from overlay.core.core import Core
from overlay.core.detector import Detector
from overlay.core.dialer import Dialer
from overlay.core.far_sets import FarSets
from overlay.core.follower import Follower
from overlay.core.heads import KeyRing
from overlay.core.inbox import Inbox
from overlay.core.links import LinkTable
from overlay.core.loads import LoadBook
from overlay.core.members import PeerRecord, state_of
from overlay.core.membership import Membership
from overlay.core.messages import ByeReason
from overlay.core.own_set import OwnSet
from overlay.core.publisher import Publisher
from overlay.core.replica import Replica
from overlay.core.sessions import Sessions
from overlay.core.speculation import Speculation
from overlay.core.suspicion import Suspicion
from overlay.core.topology import Topology
from overlay.core.views import PeerState
from overlay.sim.runner import ScriptRunner
from overlay.sim.script import load
from tests.sim import test_hostile, test_invariants
from tests.unit.overlay.core import (
    test_dialing,
    test_far_sets,
    test_follower,
    test_membership,
    test_own_set,
    test_publisher,
    test_sessions,
    test_speculation,
    test_suspicion,
)
from tests.unit.overlay.core.harness import HIGHEST, OTHER, delta

Patch = pytest.MonkeyPatch
Check = Callable[[], None]


def script(name: str) -> Check:
    return lambda: void(ScriptRunner(load(Path(__file__).parent / f"{name}.txt")).run())


def void(_: object) -> None:
    return None


def nothing(*_: Any, **__: Any) -> None:
    return None


def always(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


def no_epoch_check(patch: Patch) -> None:
    patch.setattr(Replica, "behind", lambda self, _, version: version > self.version)


def old_epochs_apply(patch: Patch) -> None:
    def on_delta(self: Follower, now: float, link: Any, delta: Any) -> None:
        replica = self._replica(link.peer)
        replica.apply(Change.of(delta))

    patch.setattr(Follower, "on_delta", on_delta)


def no_floor_check(patch: Patch) -> None:
    original = OwnSet.since

    def since(self: OwnSet, version: Any) -> Any:
        floor, self.floor = self.floor, type(self.floor)(0)
        try:
            return original(self, version)
        finally:
            self.floor = floor

    patch.setattr(OwnSet, "since", since)


def log_never_trimmed(patch: Patch) -> None:
    patch.setattr(OwnSet, "_trim", nothing)


def log_trimmed_without_raising_the_floor(patch: Patch) -> None:
    def trim(self: OwnSet) -> None:
        while len(self._log) > own_set.MIN_LOG:
            self._log.popitem(last=False)

    patch.setattr(OwnSet, "_trim", trim)


def removals_not_told(patch: Patch) -> None:
    original = Replica.apply
    patch.setattr(
        Replica, "apply", lambda self, change: original(self, replace(change, removed=change.removed[:0]))
    )


def epoch_not_persisted(patch: Patch) -> None:
    patch.setattr("overlay.core.core.load_epoch", always(0))
    patch.setattr("overlay.core.core.Core._is_outdated", always(False))


def cleared_without_a_new_epoch(patch: Patch) -> None:
    original = Publisher.restart
    patch.setattr(
        Publisher,
        "restart",
        lambda self, now, epoch, *, empty: original(self, now, self.own.epoch, empty=empty),
    )


def digest_ignored(patch: Patch) -> None:
    def compare(self: Follower, now: float, link: Any, replica: Replica, head: Any) -> None:
        replica.current_at = now

    patch.setattr(Follower, "_compare", compare)


def relay_unverified(patch: Patch) -> None:
    patch.setattr(Follower, "_proven_snapshot", always(True))


def relayed_delta_unverified(patch: Patch) -> None:
    patch.setattr(Follower, "_proven_delta", always(True))


def signatures_unchecked(patch: Patch) -> None:
    patch.setattr(KeyRing, "verified", lambda self, origin, signed: signed)


def gossip_key_unchecked(patch: Patch) -> None:
    patch.setattr(KeyRing, "trust", always(True))


def gaps_applied(patch: Patch) -> None:
    original = Follower.on_delta

    def on_delta(self: Follower, now: float, link: Any, delta: Any) -> None:
        replica = self._replica(link.peer)
        if delta.version_from > replica.version:
            replica.version = delta.version_from
        original(self, now, link, delta)

    patch.setattr(Follower, "on_delta", on_delta)


def snapshots_not_staged(patch: Patch) -> None:
    patch.setattr(Replica, "stage", lambda self, part: part.hashes)


def wants_never_repeated(patch: Patch) -> None:
    patch.setattr(Replica, "lags", property(always(False)))


def departed_stay_in_the_index(patch: Patch) -> None:
    patch.setattr(Replica, "retire", nothing)


def no_index_budget(patch: Patch) -> None:
    patch.setattr(Follower, "_has_room", always(True))


def unreachable_sets_not_pulled(patch: Patch) -> None:
    patch.setattr(Core, "_is_unreachable", always(False))


def no_suspicion(patch: Patch) -> None:
    patch.setattr(Suspicion, "deadline", property(lambda self: self.started_at))


def confirmations_ignored(patch: Patch) -> None:
    patch.setattr(Suspicion, "deadline", property(lambda self: self.started_at + self.longest))


def no_refutation(patch: Patch) -> None:
    patch.setattr(Membership, "_hear_of_self", nothing)


def no_indirect_probes(patch: Patch) -> None:
    patch.setattr(Detector, "_ask_others", lambda self, now, sequence: self._give_up(now, sequence))


def anyone_may_ack(patch: Patch) -> None:
    def on_ack(self: Detector, now: float, link: Any, message: Any) -> None:
        probe = self._probes.pop(message.sequence, None)
        if probe is not None:
            self.alive(now, probe.target, message.incarnation)

    patch.setattr(Detector, "on_ack", on_ack)


def hearsay_kills(patch: Patch) -> None:
    original = Membership._merge

    def merge(self: Membership, now: float, news: Any, link: Any) -> None:
        peer = self.table.get(news.node_id)
        if peer is not None and peer.present and news.state == 3:
            self._end(now, peer, PeerState.DEAD)
        else:
            original(self, now, news, link)

    patch.setattr(Membership, "_merge", merge)


def incarnations_ignored(patch: Patch) -> None:
    patch.setattr(membership, "supersedes", lambda news, peer: state_of(news) is not peer.state)


def lag_not_forgiven(patch: Patch) -> None:
    patch.setattr(Core, "_lagged", nothing)


def local_health_ignored(patch: Patch) -> None:
    patch.setattr(Detector, "_adjust", nothing)


def ghosts_vouched_for(patch: Patch) -> None:
    def vouched(self: Membership, limit: int) -> Any:
        return tuple(peer.news() for peer in self.table)[:limit]

    patch.setattr(Membership, "_vouched", vouched)


def nobody_forgotten(patch: Patch) -> None:
    patch.setattr(Membership, "sweep", always([]))


def the_dead_not_dialled(patch: Patch) -> None:
    patch.setattr(Dialer, "lost", nothing)


def seeds_given_up(patch: Patch) -> None:
    original = Dialer._give_up

    def give_up(self: Dialer, now: float, target: Any, reason: str) -> None:
        original(self, now, target, reason)
        if target.failures > 10 and target.timer is not None:
            target.timer.cancel()

    patch.setattr(Dialer, "_give_up", give_up)


def no_backoff(patch: Patch) -> None:
    patch.setattr(Dialer, "_backoff", always(0.01))


def dials_unbounded(patch: Patch) -> None:
    patch.setattr(dialer, "MAX_DIALS_AT_ONCE", math.inf)


def no_peer_cache(patch: Patch) -> None:
    patch.setattr("overlay.core.core.load_peers", always({}))


def later_stream_always_wins(patch: Patch) -> None:
    patch.setattr(LinkTable, "_loser", lambda self, older, newer: older)


def hello_not_compared_with_the_certificate(patch: Patch) -> None:
    original = Sessions.on_hello

    def on_hello(self: Sessions, now: float, link: Any, hello: Any) -> None:
        link.peer = hello.node_id
        original(self, now, link, hello)

    patch.setattr(Sessions, "on_hello", on_hello)


def no_ban(patch: Patch) -> None:
    original = Sessions.punish

    def punish(self: Sessions, now: float, link: Any, violation: str) -> None:
        original(self, now, link, violation)
        self._banned_until.clear()

    patch.setattr(Sessions, "punish", punish)


def floods_allowed(patch: Patch) -> None:
    patch.setattr(Inbox, "charge", nothing)


def old_loads_believed(patch: Patch) -> None:
    def heard(self: LoadBook, now: float, node_id: Any, report: Any) -> None:
        self._loads[node_id] = (report, now)

    patch.setattr(LoadBook, "heard", heard)


def unchanged_load_not_told(patch: Patch) -> None:
    patch.setattr(LoadBook, "keep_fresh", nothing)


def speculation_for_ever(patch: Patch) -> None:
    patch.setattr(Speculation, "expire", nothing)


def other_models_followed(patch: Patch) -> None:
    original = Sessions._accept

    def accept(self: Sessions, now: float, link: Any, hello: Any) -> None:
        original(self, now, link, hello)
        link.follows = True

    patch.setattr(Sessions, "_accept", accept)


def far_filters_unverified(patch: Patch) -> None:
    patch.setattr(KeyRing, "verified", lambda self, origin, signed: signed)


def filters_relayed_on_and_on(patch: Patch) -> None:
    original = FarSets._keep

    def keep(self: FarSets, now: float, origin: Any, summary: Any) -> None:
        original(self, now, origin, summary)
        for link in self.links.ready():
            self._relay(link, origin, summary)

    patch.setattr(FarSets, "_keep", keep)


def degree_unbounded(patch: Patch) -> None:
    patch.setattr(Topology, "size_changed", nothing)


def the_forgetful_not_reminded(patch: Patch) -> None:
    patch.setattr(Follower, "_relay_head", nothing)


def lost_neighbours_not_called_back(patch: Patch) -> None:
    patch.setattr(Topology, "reclaim", nothing)


def gone_never_ends(patch: Patch) -> None:
    patch.setattr(PeerRecord, "gone", property(always(False)))


def deltas_not_gathered(patch: Patch) -> None:
    patch.setattr("overlay.core.publisher.FULL_DELTA", 1)


def heads_with_every_change(patch: Patch) -> None:
    patch.setattr(OwnSet, "changing", property(always(0)))


def the_heard_probed_too(patch: Patch) -> None:
    patch.setattr(Detector, "_is_fresh", always(False))


def nothing_remembered_for_those_who_lag(patch: Patch) -> None:
    patch.setattr(History, "since", always(None))


def history_outlives_its_epoch(patch: Patch) -> None:
    patch.setattr(Replica, "since", lambda self, epoch, version: self._history.since(version))


def unsigned_chunks_staged(patch: Patch) -> None:
    patch.setattr(Follower, "_is_promised", always(True))


def far_filters_unbounded(patch: Patch) -> None:
    patch.setattr("overlay.core.far_sets.MAX_FAR_BYTES", math.inf)


def evicted_not_forgotten(patch: Patch) -> None:
    patch.setattr(Core, "_forget", nothing)


def evicted_members_forgotten() -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_membership.test_a_full_table_makes_room_for_those_who_say_hello_and_forgets_all_about_the_others(
            patch
        )


def wrong_key() -> None:
    test_sessions.test_a_wrong_hello_ends_the_stream(
        {"gossip_key_certificate": b"forged"}, ByeReason.IDENTITY
    )


def wrong_id() -> None:
    test_sessions.test_a_wrong_hello_ends_the_stream({"node_id": OTHER}, ByeReason.IDENTITY)


def two_streams() -> None:
    test_sessions.test_of_two_streams_the_one_dialled_by_the_lower_id_stays(HIGHEST, True)


def impossible_frame() -> None:
    test_sessions.test_impossible_frames_end_every_stream_and_ban_the_peer_for_a_while(delta((5, 3), [1], []))


def epoch_forgotten() -> None:
    test_follower.test_an_origin_that_forgot_its_epoch_is_reminded_until_it_listens()


def silent_peer() -> None:
    test_membership.test_a_silent_peer_is_probed_through_others_suspected_and_declared_dead()


def clock_in_the_past() -> None:
    test_invariants.test_a_node_without_disk_and_with_a_clock_in_the_past_is_believed_again()


MUTANTS: list[tuple[Callable[[Patch], None], Check]] = [
    (no_epoch_check, test_follower.test_a_higher_epoch_starts_over_and_a_lower_one_is_dropped),
    (old_epochs_apply, test_follower.test_a_higher_epoch_starts_over_and_a_lower_one_is_dropped),
    (no_floor_check, test_own_set.test_log_is_trimmed_and_the_floor_rises),
    (log_never_trimmed, test_own_set.test_log_is_trimmed_and_the_floor_rises),
    (log_trimmed_without_raising_the_floor, test_own_set.test_log_is_trimmed_and_the_floor_rises),
    (removals_not_told, test_follower.test_changes_apply_only_where_they_continue),
    (epoch_not_persisted, clock_in_the_past),
    (cleared_without_a_new_epoch, test_follower.test_a_cleared_cache_is_a_new_epoch_told_at_once),
    (digest_ignored, test_follower.test_unequal_digests_are_repaired_by_ranges),
    (relay_unverified, test_follower.test_a_relay_is_believed_only_with_the_origins_signature),
    (relayed_delta_unverified, test_follower.test_a_relay_is_believed_only_with_the_origins_signature),
    (signatures_unchecked, test_follower.test_a_forged_head_changes_nothing),
    (gossip_key_unchecked, wrong_key),
    (gaps_applied, test_follower.test_changes_apply_only_where_they_continue),
    (snapshots_not_staged, test_follower.test_snapshot_chunks_are_swapped_in_whole),
    (wants_never_repeated, test_follower.test_an_unanswered_want_is_repeated),
    (departed_stay_in_the_index, test_follower.test_the_departed_match_nothing),
    (no_index_budget, test_follower.test_the_largest_set_is_left_out_when_the_index_is_full),
    (unreachable_sets_not_pulled, script("relay")),
    (no_suspicion, script("blink")),
    (confirmations_ignored, test_suspicion.test_confirmations_shrink_it_from_the_longest_to_the_shortest),
    (no_refutation, test_membership.test_rumours_of_its_own_death_are_refuted_at_once),
    (no_indirect_probes, silent_peer),
    (anyone_may_ack, test_membership.test_an_ack_from_the_wrong_peer_proves_nothing),
    (hearsay_kills, test_membership.test_hearsay_kills_nobody_who_is_connected_here),
    (incarnations_ignored, test_membership.test_hearsay_of_a_death_is_believed_without_a_stream),
    (lag_not_forgiven, test_membership.test_a_process_that_was_stopped_declares_nobody_dead),
    (local_health_ignored, test_membership.test_nacks_blame_the_target_and_their_absence_this_node),
    (ghosts_vouched_for, test_hostile.test_ghosts_reach_nobody_but_the_liars_own_neighbours),
    (nobody_forgotten, test_invariants.test_the_forgotten_stay_forgotten),
    (the_dead_not_dialled, test_dialing.test_a_seed_that_connects_is_left_alone_until_it_is_lost),
    (seeds_given_up, test_dialing.test_a_seed_is_dialled_at_once_often_at_first_and_for_ever),
    (no_backoff, test_dialing.test_a_peer_that_refuses_after_the_handshake_is_not_hammered),
    (dials_unbounded, test_dialing.test_dials_at_once_are_bounded),
    (no_peer_cache, script("seedless")),
    (later_stream_always_wins, two_streams),
    (hello_not_compared_with_the_certificate, wrong_id),
    (no_ban, impossible_frame),
    (floods_allowed, test_hostile.test_a_flood_is_cut_off),
    (old_loads_believed, test_membership.test_older_load_reports_are_dropped),
    (unchanged_load_not_told,
     test_membership.test_load_is_told_on_change_but_not_too_often_and_at_least_once_a_second),
    (speculation_for_ever, test_speculation.test_claims_continue_what_is_known_and_expire),
    (other_models_followed, test_sessions.test_another_model_makes_a_member_whose_set_is_not_followed),
    (far_filters_unverified, test_far_sets.test_a_forged_filter_is_not_kept),
    (filters_relayed_on_and_on, test_far_sets.test_a_far_filter_goes_no_further),
    (degree_unbounded, test_far_sets.test_a_large_mesh_keeps_a_bounded_degree),
    (the_forgetful_not_reminded, epoch_forgotten),
    (lost_neighbours_not_called_back, test_far_sets.test_a_lost_neighbour_is_called_back_whatever_the_degree),
    (gone_never_ends, script("crash")),
    (deltas_not_gathered, test_publisher.test_changes_that_go_on_are_gathered),
    (heads_with_every_change, test_publisher.test_heads_are_rare_while_changes_go_on),
    (the_heard_probed_too, test_membership.test_a_peer_that_is_heard_is_probed_only_for_its_round_trip),
    (nothing_remembered_for_those_who_lag, test_follower.test_a_relay_passes_on_only_what_changed),
    (history_outlives_its_epoch, test_follower.test_a_relay_that_does_not_remember_passes_on_the_whole_set),
    (unsigned_chunks_staged, test_follower.test_relayed_chunks_are_staged_only_as_far_as_the_origin_signed),
    (far_filters_unbounded, test_far_sets.test_far_filters_together_are_bounded),
    (evicted_not_forgotten, evicted_members_forgotten),
]  # fmt: skip


@pytest.mark.parametrize(("mutate", "check"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_the_mutant_is_caught(mutate: Callable[[Patch], None], check: Check, monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError)):
        check()


@pytest.mark.parametrize(
    "check", [check for _, check in MUTANTS], ids=[mutant.__name__ for mutant, _ in MUTANTS]
)
def test_the_check_passes_without_the_mutant(check: Check) -> None:
    check()
