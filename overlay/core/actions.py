"""Everything the core asks of its driver, one value each, to be done in the order given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from overlay.core.events import LinkId
from overlay.core.messages import ByeReason, Message
from overlay.core.types import Address, NodeId
from overlay.core.views import Notification


class Send(NamedTuple):
    """Queue a frame on a link; sending on a link that just went down is no error.

    What goes to several links is one message: drivers need not encode it twice in a row.
    """

    link: LinkId
    message: Message


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Hand in TimerFired at `at` (the clock of `now`); replaces the timer set before."""

    at: float


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a stream to `address`, expecting `node_id` where it is known.

    Answered by one LinkUp or one DialFailed.
    """

    address: Address
    node_id: NodeId | None


@dataclass(frozen=True, slots=True)
class Close:
    """Write what is queued on the link (the Bye is the last of it), then end the stream."""

    link: LinkId
    reason: ByeReason


@dataclass(frozen=True, slots=True)
class Emit:
    """News for the node: logs, metrics, readiness."""

    notification: Notification


@dataclass(frozen=True, slots=True)
class Persist:
    """Store `value` under `key` so that a restart finds it; the write replaces the old one whole."""

    key: str
    value: bytes


Action: TypeAlias = Send | SetTimer | Dial | Close | Emit | Persist
