"""What nodes say to one another on a gossip stream: one frozen value per frame body.

The wire form of each is in `proto/rumormill/v1/overlay.proto`; hash lists are uint64 arrays.
Where `origin` may be None, it means the sender itself and saves 34 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from overlay.core.types import Address, Epoch, Load, NodeId, Version

Hashes: TypeAlias = npt.NDArray[np.uint64]
"""Block hashes, one-dimensional, in no particular order and without duplicates."""

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0


class MemberState(IntEnum):
    """What a node believes of another; the numbers are the wire's."""

    ALIVE = 1
    SUSPECT = 2
    DEAD = 3
    LEFT = 4


class ByeReason(IntEnum):
    """Why a stream ends; the numbers are the wire's."""

    UNSPECIFIED = 0
    LEAVING = 1
    VERSION = 2
    DUPLICATE = 3
    PROTOCOL = 4
    IDENTITY = 5
    SELF = 6
    OVERLOADED = 7


@dataclass(frozen=True, slots=True)
class Hello:
    """Who the sender is. The first frame each way, and sent again when a field of it changes."""

    major: int
    minor: int
    node_id: NodeId
    epoch: Epoch
    incarnation: int
    addresses: tuple[Address, ...]
    model: bytes
    model_name: str
    http_url: str = ""
    gossip_key: bytes = b""
    gossip_key_certificate: bytes = b""


@dataclass(frozen=True, slots=True)
class Member:
    """One piece of membership news; `reporter` is the node that suspects or declares death."""

    node_id: NodeId
    state: MemberState
    incarnation: int
    addresses: tuple[Address, ...] = ()
    reporter: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Members:
    """Membership news, most urgent first."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """What one replica is: the set of `origin` at (epoch, version), signed by the origin.

    `floor` is the oldest version a delta can start from. The key and its certificate travel only
    to receivers that have no stream to the origin.
    """

    origin: NodeId | None
    epoch: Epoch
    version: Version
    floor: Version
    count: int
    digest_low: int
    digest_high: int
    signature: bytes = b""
    gossip_key: bytes = b""
    gossip_key_certificate: bytes = b""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads that changed since the last ones sent on this stream."""

    heads: tuple[Head, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """Asks for what changed in `origin`'s set since (epoch, version); epoch 0 asks for all of it."""

    origin: NodeId | None
    epoch: Epoch
    version: Version


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """Net changes of (version_from, version_to]; more than fit one frame go as a snapshot."""

    origin: NodeId | None
    epoch: Epoch
    version_from: Version
    version_to: Version
    added: Hashes
    removed: Hashes


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Part `chunk` of `chunks` (counted from 0) of the whole set at (epoch, version)."""

    origin: NodeId | None
    epoch: Epoch
    version: Version
    chunk: int
    chunks: int
    hashes: Hashes


@dataclass(frozen=True, slots=True, eq=False)
class RangeDigests:
    """The receiver's 256 range digests of a replica, shape (256, 2), by a hash's top byte."""

    origin: NodeId | None
    epoch: Epoch
    version: Version
    digests: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class RangeWant:
    """Asks for the range digests (`ranges` empty), or for the hashes of some ranges, a byte each."""

    origin: NodeId | None
    epoch: Epoch
    version: Version
    ranges: bytes


@dataclass(frozen=True, slots=True, eq=False)
class RangeHashes:
    """All hashes of the set in `ranges`; they replace what the receiver holds there."""

    origin: NodeId | None
    epoch: Epoch
    version: Version
    ranges: bytes
    hashes: Hashes


@dataclass(frozen=True, slots=True)
class Filter:
    """A Bloom filter of a far node's set, relayed once by each neighbour of its origin.

    `bits` holds the filter, little-endian bit order; `probes` bits are set per hash.
    """

    origin: NodeId | None
    epoch: Epoch
    version: Version
    count: int
    probes: int
    bits: bytes
    model: bytes
    signature: bytes = b""
    gossip_key: bytes = b""
    gossip_key_certificate: bytes = b""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How busy `origin` is."""

    origin: NodeId | None
    load: Load


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks the receiver for an Ack of the same sequence."""

    sequence: int


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Asks the receiver to probe `target` and to answer with Ack, or Nack when it stays silent."""

    sequence: int
    target: NodeId


@dataclass(frozen=True, slots=True)
class Ack:
    """The probed node lives, in this incarnation."""

    sequence: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Nack:
    """The asked node tried, and its target has not answered yet."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Bye:
    """The last frame of a stream."""

    reason: ByeReason
    detail: str = ""


Message: TypeAlias = (
    Hello
    | Members
    | Heads
    | Want
    | Delta
    | Snapshot
    | RangeDigests
    | RangeWant
    | RangeHashes
    | Filter
    | LoadReport
    | Probe
    | ProbeRequest
    | Ack
    | Nack
    | Bye
)
