"""The protocol with one rule broken on purpose, a mutant each: what `test_mutants.py` must catch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
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
from overlay.core.own_set import OwnSet
from overlay.core.publisher import Publisher
from overlay.core.replica import Replica
from overlay.core.sessions import Sessions
from overlay.core.speculation import Speculation
from overlay.core.suspicion import Suspicion
from overlay.core.topology import Topology
from overlay.core.views import PeerState

Patch = pytest.MonkeyPatch


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
