"""Everything overlay/net raises.

OverlayError
├── SeedError                  a seed that is no address, or a file of them that can't be read
├── MalformedFrameError        a frame that doesn't decode or breaks a limit
├── DialError                  a dial that came to nothing
│   ├── RefusedError           nobody listens there
│   ├── NoAnswerError          silence, or no way there
│   ├── WrongMeshError         its certificate is of another mesh, or it refuses this node's
│   ├── NotRumormillError      something answers that is no node
│   ├── WrongPeerError         another node answers than the one that was meant
│   ├── SelfDialError          the address leads to this node itself
│   └── TwinError              the address leads to a copy of this node
├── StreamLostError            a gossip stream that broke
└── PeerUnreachableError       no data channel to a peer: it is unknown, or can't be dialled
"""

from __future__ import annotations

from overlay.core.errors import OverlayError


class SeedError(OverlayError, ValueError):
    """A seed that is no address, or a file of seeds that can't be read."""


class MalformedFrameError(OverlayError):
    """A frame that doesn't decode or breaks a limit; the text says which."""


class DialError(OverlayError):
    """A dial that came to nothing; the text names the address, the cause and the remedy."""


class RefusedError(DialError):
    """Nobody listens at the address."""


class NoAnswerError(DialError):
    """The address is silent, or there is no way to it."""


class WrongMeshError(DialError):
    """A node of another mesh answers, or one that doesn't accept this node's certificate."""


class NotRumormillError(DialError):
    """Something answers that is no node."""


class WrongPeerError(DialError):
    """Another node answers than the one that was meant."""


class SelfDialError(DialError):
    """The address leads to this node itself."""


class TwinError(DialError):
    """Another machine runs with this node's key."""


class StreamLostError(OverlayError):
    """A gossip stream that broke, rather than being ended by the peer."""


class PeerUnreachableError(OverlayError):
    """There is no data channel to a peer: it is unknown, or none of its addresses can be dialled."""
