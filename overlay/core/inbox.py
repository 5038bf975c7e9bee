"""How much one peer may ask of this node: two token buckets per stream."""

from __future__ import annotations

from dataclasses import dataclass

from overlay.core import messages
from overlay.core.errors import ProtocolError
from overlay.core.messages import Message
from overlay.core.tokens import TokenBucket

FRAMES_PER_S = 300.0
"""Ten load reports, five deltas, five pieces of news and some probes a second, ten times over."""

FRAMES_AT_ONCE = 5_000.0
"""What a healthy peer may have sent while this node's process was stopped."""

BYTES_PER_S = 16 << 20
"""Twice the rate at which snapshots are sent."""

BYTES_AT_ONCE = 64 << 20
"""Four times the largest set."""

WEIGHTS: dict[type, float] = {
    messages.Hello: 20.0,
    messages.Want: 10.0,
    messages.RangeWant: 20.0,
    messages.RangeDigests: 20.0,
    messages.ProbeRequest: 2.0,
}
"""Frames that cost more than their bytes say: signatures to check, sets to gather."""


@dataclass(slots=True, eq=False)
class Inbox:
    """The allowance of one stream."""

    frames: TokenBucket
    bytes: TokenBucket

    @classmethod
    def full(cls, now: float) -> Inbox:
        frames = TokenBucket.full(now, FRAMES_PER_S, FRAMES_AT_ONCE)
        return cls(frames, TokenBucket.full(now, BYTES_PER_S, BYTES_AT_ONCE))

    def charge(self, now: float, message: Message, size: int) -> None:
        """Raises ProtocolError when a peer floods this node."""
        weight = WEIGHTS.get(type(message), 1.0)
        if not self.frames.take(now, weight) or (size and not self.bytes.take(now, size)):
            raise ProtocolError("a flood: more frames or bytes than a stream may carry")
