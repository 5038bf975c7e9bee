"""Everything that can happen to the core, one value each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType, TypeAlias

from overlay.core.messages import Message
from overlay.core.types import Address, BlockHash, Load, NodeId

LinkId = NewType("LinkId", int)
"""One gossip stream, numbered by the driver; never used twice in a core's life."""


class HintSource(Enum):
    """Who says that a node may listen at an address."""

    SEED = "seed"
    """Told by the operator (`--peer`): redialled for ever."""
    MDNS = "mdns"
    DNS = "dns"


@dataclass(frozen=True, slots=True)
class Started:
    """The first event: the node is listening and may dial."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of the latest SetTimer has come."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A stream is open, and TLS has authenticated `peer`.

    `dialled` is the address when this node dialled, None when the peer did. A dialled link to this
    node itself is reported too (`peer` is then the own id).
    """

    link: LinkId
    peer: NodeId
    dialled: Address | None = None


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A stream has ended, for whatever reason; never reported for links this core closed."""

    link: LinkId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DialFailed:
    """A Dial came to nothing: nobody listens, or TLS refused, or another node answered."""

    address: Address
    node_id: NodeId | None
    reason: str


class MessageReceived(NamedTuple):
    """A well-formed frame came in; `size` is its length on the wire in bytes."""

    link: LinkId
    message: Message
    size: int = 0


@dataclass(frozen=True, slots=True)
class MalformedFrame:
    """A frame came in that doesn't decode or breaks a wire limit."""

    link: LinkId
    detail: str


@dataclass(frozen=True, slots=True)
class SendQueue:
    """How many bytes of a link wait to be written; reported when it passes a limit or drains."""

    link: LinkId
    bytes_waiting: int


@dataclass(frozen=True, slots=True)
class LocalBlocks:
    """Blocks that this node's engine stored or removed."""

    stored: Sequence[BlockHash] = ()
    removed: Sequence[BlockHash] = ()


@dataclass(frozen=True, slots=True)
class LocalCleared:
    """This node's cache is empty now (the engine restarted or flushed): a new epoch begins."""


@dataclass(frozen=True, slots=True)
class LocalLoad:
    """How busy this node is now; the core stamps epoch and sequence itself."""

    load: Load


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """A load report that rode on an RPC answer of `node_id`."""

    node_id: NodeId
    load: Load


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A prompt with these block hashes was just sent to `node_id`, which will soon cache them."""

    node_id: NodeId
    hashes: Sequence[BlockHash]


@dataclass(frozen=True, slots=True)
class AddressHint:
    """A node, `node_id` where it is known, may listen at `address`; says nothing of liveness."""

    address: Address
    node_id: NodeId | None
    source: HintSource


@dataclass(frozen=True, slots=True)
class LoopLag:
    """The event loop ran `lag_s` seconds late: this node's own view of time is not to be trusted."""

    lag_s: float


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """This node listens at other addresses now."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """This node is going: say so on every link. The core only answers queries afterwards."""


Event: TypeAlias = (
    Started
    | TimerFired
    | LinkUp
    | LinkDown
    | DialFailed
    | MessageReceived
    | MalformedFrame
    | SendQueue
    | LocalBlocks
    | LocalCleared
    | LocalLoad
    | PeerLoad
    | Forwarded
    | AddressHint
    | LoopLag
    | AddressesChanged
    | Leave
)
