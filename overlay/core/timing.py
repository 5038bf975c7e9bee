"""How fast the overlay beats, with presets per environment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Every knob in seconds unless it says otherwise; the defaults suit a LAN.

    Sources: SWIM (Das et al., DSN 2002), Lifeguard (Dadgar et al., arXiv 1707.00788).
    """

    heartbeat_s: float = 1.0
    """One gossip round: one peer is probed, news and heads go out. Shorter detects and converges
    sooner, and costs bytes in proportion."""

    ack_s: float = 0.5
    """Deadline of a direct probe, times (local health + 1). Must exceed the worst usual RTT."""

    rtt_s: float = 10.0
    """A peer that is heard all the time is still probed this often, to measure the round trip."""

    indirect_probes: int = 3
    """Peers asked to probe a silent one. Each costs four frames per failed probe."""

    suspicion: float = 4.0
    """A suspect has suspicion x max(1, log10 N) x heartbeat_s to refute before it is dead. Longer
    forgives longer pauses, shorter finds crashes sooner."""

    suspicion_max_factor: float = 6.0
    """Suspicion starts this many times longer and shrinks to the bound above as others confirm."""

    suspicion_confirmations: int = 3
    """Independent confirmations after which suspicion has shrunk wholly."""

    max_local_health: int = 8
    """Ceiling of the local health counter: a sick node waits up to nine times longer for acks."""

    lag_s: float = 0.25
    """An event loop later than this raises local health: the silence may be our own."""

    gossip_s: float = 0.2
    """Membership news goes on to a few peers this often, while there is any: log N times this and
    everyone knows."""

    gossip_fanout: int = 3
    """Peers told each time. More is faster and costs bytes in proportion."""

    flush_s: float = 0.2
    """The first local block changes after a quiet time are gathered this long, then sent as one delta; and
    deltas follow one another no faster."""

    flush_max_s: float = 1.5
    """While changes go on, a delta waits this long for enough of them to be worth its frame. Longer packs
    more hashes per frame, shorter makes hearsay fresher; hearsay of 5 s costs no hits."""

    load_min_s: float = 0.1
    """A changed load is told at most this often."""

    load_max_s: float = 1.0
    """An unchanged load is told at least this often: load older than that loses hits."""

    want_retry_s: float = 0.5
    """An unanswered Want, or a snapshot that doesn't get on, is asked for again after this."""

    head_repeats: int = 7
    """Rounds in which a changed head is sent again once the set is quiet, should the first be lost with a
    full queue: at 10 % loss one in 10^7 followers misses them all. Each costs 150 bytes a link."""

    head_refresh_s: float = 10.0
    """A head is sent this often even while the set goes on changing, when deltas tell the versions, and
    after it has been repeated enough."""

    dial_first_s: float = 0.25
    """First wait between dials of an address. Doubles with every failure, with jitter of half."""

    dial_max_s: float = 15.0
    """Longest wait between dials of a seed or a live member: bounds how long a split heals."""

    dial_timeout_s: float = 10.0
    """A dial that the driver doesn't answer is given up after this."""

    hello_s: float = 5.0
    """A stream whose Hello hasn't come by then is closed."""

    ban_s: float = 60.0
    """A peer that broke the protocol is refused this long. Longer protects more, and punishes a
    peer with a passing defect more."""

    forget_s: float = 900.0
    """A dead or departed peer is remembered, and the dead one redialled, this long."""

    candidate_s: float = 900.0
    """A candidate that never answers is forgotten after this."""

    forwarded_s: float = 10.0
    """Life of a speculative index entry for what was just forwarded: about one answer's prefill
    plus a flush; the peer's own delta takes over then."""

    filter_s: float = 60.0
    """Filters of sets for far nodes are made anew this often. They cost 0.75 bytes per block."""

    @classmethod
    def lan(cls) -> Timing:
        """One data centre or home network."""
        return cls()

    @classmethod
    def wan(cls) -> Timing:
        """Nodes across continents: patient with acks, gathers longer."""
        return cls(ack_s=1.5, flush_s=0.5, flush_max_s=3.0, suspicion=6.0, dial_timeout_s=20.0)
