"""What goes first on a stream that can't take everything at once."""

from __future__ import annotations

from enum import IntEnum

from overlay.core import messages
from overlay.core.messages import Heads, Message

_MEMBERSHIP = (
    messages.Hello, messages.Bye, messages.Members,
    messages.Probe, messages.ProbeRequest, messages.Ack, messages.Nack,
)  # fmt: skip
_BULK = (messages.Snapshot, messages.RangeDigests, messages.RangeHashes)


class Priority(IntEnum):
    """Classes of frames, the most urgent first; within one, order is kept.

    Who lives matters more than how busy they are, that more than what they have cached, what this node
    knows at first hand more than hearsay, and all of it more than whole sets, which can be asked for again.
    """

    MEMBERSHIP = 0
    LOAD = 1
    OWN = 2
    RELAYED = 3
    BULK = 4


def priority_of(message: Message) -> Priority:
    """The class of a frame. Questions about sets (Want, RangeWant) go with this node's own news."""
    if isinstance(message, _MEMBERSHIP):
        return Priority.MEMBERSHIP
    if isinstance(message, messages.LoadReport):
        return Priority.LOAD
    if isinstance(message, _BULK):
        return Priority.BULK
    if isinstance(message, messages.Filter):
        return Priority.RELAYED
    origins = [head.origin for head in message.heads] if isinstance(message, Heads) else []
    if isinstance(message, messages.Delta):
        origins = [message.origin]
    return Priority.RELAYED if any(origin is not None for origin in origins) else Priority.OWN
