"""How gossip streams are opened: over gRPC, or in memory. One test suite runs against both."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol, TypeAlias

from overlay.core.types import Address, NodeId
from rumormill.v1 import overlay_pb2 as pb

Frames: TypeAlias = AsyncGenerator[pb.Frame, None]
"""One direction of a stream; when it is over, so is that direction."""


class Stream(Protocol):
    """One open stream to an authenticated peer, seen from either end."""

    @property
    def peer(self) -> NodeId: ...

    @property
    def certificate(self) -> bytes | None:
        """The peer's leaf, PEM; None where the transport has none."""

    def frames(self) -> Frames:
        """What the peer sends, until it ends the stream; raises StreamLostError when it breaks.

        Raises MalformedFrameError for bytes that are no frame, and is over then.
        """

    def abort(self) -> None:
        """Ends the stream at once, whatever is still to be written."""


Accept: TypeAlias = Callable[[Stream], Frames]
"""Called by a transport when a peer has opened a stream; returns what this end sends."""


class Transport(Protocol):
    """Opens streams; those that peers open are handed to an `Accept`."""

    async def dial(self, address: Address, node_id: NodeId | None, outgoing: Frames) -> Stream:
        """A stream to whoever answers at `address`, `node_id` if given; raises a DialError."""

    async def close(self) -> None:
        """Ends every stream."""
