"""Each rule of the protocol, broken on purpose: a test must notice, or the rule isn't tested.

A mutant is the change it makes and the check, taken from the other tests, that catches it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from overlay.core.messages import ByeReason
from overlay.sim.runner import ScriptRunner
from overlay.sim.script import load
from tests.sim import mutants, test_hostile, test_invariants
from tests.sim.mutants import Patch
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

Check = Callable[[], None]


def script(name: str) -> Check:
    return lambda: void(ScriptRunner(load(Path(__file__).parent / f"{name}.txt")).run())


def void(_: object) -> None:
    return None


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
    (mutants.no_epoch_check, test_follower.test_a_higher_epoch_starts_over_and_a_lower_one_is_dropped),
    (mutants.old_epochs_apply, test_follower.test_a_higher_epoch_starts_over_and_a_lower_one_is_dropped),
    (mutants.no_floor_check, test_own_set.test_log_is_trimmed_and_the_floor_rises),
    (mutants.log_never_trimmed, test_own_set.test_log_is_trimmed_and_the_floor_rises),
    (mutants.log_trimmed_without_raising_the_floor, test_own_set.test_log_is_trimmed_and_the_floor_rises),
    (mutants.removals_not_told, test_follower.test_changes_apply_only_where_they_continue),
    (mutants.epoch_not_persisted, clock_in_the_past),
    (mutants.cleared_without_a_new_epoch, test_follower.test_a_cleared_cache_is_a_new_epoch_told_at_once),
    (mutants.digest_ignored, test_follower.test_unequal_digests_are_repaired_by_ranges),
    (mutants.relay_unverified, test_follower.test_a_relay_is_believed_only_with_the_origins_signature),
    (
        mutants.relayed_delta_unverified,
        test_follower.test_a_relay_is_believed_only_with_the_origins_signature,
    ),
    (mutants.signatures_unchecked, test_follower.test_a_forged_head_changes_nothing),
    (mutants.gossip_key_unchecked, wrong_key),
    (mutants.gaps_applied, test_follower.test_changes_apply_only_where_they_continue),
    (mutants.snapshots_not_staged, test_follower.test_snapshot_chunks_are_swapped_in_whole),
    (mutants.wants_never_repeated, test_follower.test_an_unanswered_want_is_repeated),
    (mutants.departed_stay_in_the_index, test_follower.test_the_departed_match_nothing),
    (mutants.no_index_budget, test_follower.test_the_largest_set_is_left_out_when_the_index_is_full),
    (mutants.unreachable_sets_not_pulled, script("relay")),
    (mutants.no_suspicion, script("blink")),
    (
        mutants.confirmations_ignored,
        test_suspicion.test_confirmations_shrink_it_from_the_longest_to_the_shortest,
    ),
    (mutants.no_refutation, test_membership.test_rumours_of_its_own_death_are_refuted_at_once),
    (mutants.no_indirect_probes, silent_peer),
    (mutants.anyone_may_ack, test_membership.test_an_ack_from_the_wrong_peer_proves_nothing),
    (mutants.hearsay_kills, test_membership.test_hearsay_kills_nobody_who_is_connected_here),
    (mutants.incarnations_ignored, test_membership.test_hearsay_of_a_death_is_believed_without_a_stream),
    (mutants.lag_not_forgiven, test_membership.test_a_process_that_was_stopped_declares_nobody_dead),
    (mutants.local_health_ignored, test_membership.test_nacks_blame_the_target_and_their_absence_this_node),
    (mutants.ghosts_vouched_for, test_hostile.test_ghosts_reach_nobody_but_the_liars_own_neighbours),
    (mutants.nobody_forgotten, test_invariants.test_the_forgotten_stay_forgotten),
    (mutants.the_dead_not_dialled, test_dialing.test_a_seed_that_connects_is_left_alone_until_it_is_lost),
    (mutants.seeds_given_up, test_dialing.test_a_seed_is_dialled_at_once_often_at_first_and_for_ever),
    (mutants.no_backoff, test_dialing.test_a_peer_that_refuses_after_the_handshake_is_not_hammered),
    (mutants.dials_unbounded, test_dialing.test_dials_at_once_are_bounded),
    (mutants.no_peer_cache, script("seedless")),
    (mutants.later_stream_always_wins, two_streams),
    (mutants.hello_not_compared_with_the_certificate, wrong_id),
    (mutants.no_ban, impossible_frame),
    (mutants.floods_allowed, test_hostile.test_a_flood_is_cut_off),
    (mutants.old_loads_believed, test_membership.test_older_load_reports_are_dropped),
    (
        mutants.unchanged_load_not_told,
        test_membership.test_load_is_told_on_change_but_not_too_often_and_at_least_once_a_second,
    ),
    (mutants.speculation_for_ever, test_speculation.test_claims_continue_what_is_known_and_expire),
    (
        mutants.other_models_followed,
        test_sessions.test_another_model_makes_a_member_whose_set_is_not_followed,
    ),
    (mutants.far_filters_unverified, test_far_sets.test_a_forged_filter_is_not_kept),
    (mutants.filters_relayed_on_and_on, test_far_sets.test_a_far_filter_goes_no_further),
    (mutants.degree_unbounded, test_far_sets.test_a_large_mesh_keeps_a_bounded_degree),
    (mutants.the_forgetful_not_reminded, epoch_forgotten),
    (
        mutants.lost_neighbours_not_called_back,
        test_far_sets.test_a_lost_neighbour_is_called_back_whatever_the_degree,
    ),
    (mutants.gone_never_ends, script("crash")),
    (mutants.deltas_not_gathered, test_publisher.test_changes_that_go_on_are_gathered),
    (mutants.heads_with_every_change, test_publisher.test_heads_are_rare_while_changes_go_on),
    (
        mutants.the_heard_probed_too,
        test_membership.test_a_peer_that_is_heard_is_probed_only_for_its_round_trip,
    ),
    (mutants.nothing_remembered_for_those_who_lag, test_follower.test_a_relay_passes_on_only_what_changed),
    (
        mutants.history_outlives_its_epoch,
        test_follower.test_a_relay_that_does_not_remember_passes_on_the_whole_set,
    ),
    (
        mutants.unsigned_chunks_staged,
        test_follower.test_relayed_chunks_are_staged_only_as_far_as_the_origin_signed,
    ),
    (mutants.far_filters_unbounded, test_far_sets.test_far_filters_together_are_bounded),
    (mutants.evicted_not_forgotten, evicted_members_forgotten),
]


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
