"""What the core shows to the node: its peers as it sees them, and news about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from overlay.core.types import Address, Load, NodeId


class PeerState(Enum):
    """What this node believes of a peer."""

    CANDIDATE = "candidate"
    """Heard of, from peers or the disk; no authenticated Hello yet."""
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class PeerView:
    """One peer as seen from here; everything in it is hearsay. Ages and RTT in seconds.

    `model` is empty until a Hello or a signed filter told it; `rtt_s` is None until measured;
    `replica_age_s` is the time since its cached set was last known to be current.
    """

    node_id: NodeId
    state: PeerState
    connected: bool
    addresses: tuple[Address, ...]
    model: bytes
    model_name: str
    http_url: str
    rtt_s: float | None
    load: Load | None
    load_age_s: float | None
    cached_blocks: int
    replica_age_s: float | None


@dataclass(frozen=True, slots=True)
class MemberChanged:
    """This node's belief about a peer changed; `state` is None when the peer was forgotten."""

    node_id: NodeId
    state: PeerState | None


@dataclass(frozen=True, slots=True)
class Connected:
    """A peer's Hello was accepted on a stream."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The last stream to a peer ended."""

    node_id: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class PeerMisbehaved:
    """A peer broke the protocol and was cut off."""

    node_id: NodeId
    detail: str


@dataclass(frozen=True, slots=True)
class DialProblem:
    """An address that should have a node behind it can't be reached."""

    address: Address
    reason: str


Notification: TypeAlias = MemberChanged | Connected | Disconnected | PeerMisbehaved | DialProblem
