"""What can go wrong in the overlay core.

OverlayError
|-- ProtocolError       a peer broke a rule of the protocol; it is cut off
`-- StoredStateError    what an earlier run persisted can't be read
"""

from __future__ import annotations


class OverlayError(Exception):
    """The root of the overlay's errors."""


class ProtocolError(OverlayError):
    """A peer broke a rule of the protocol; the text says which, for its logs and ours."""


class StoredStateError(OverlayError):
    """What an earlier run persisted can't be read; the text names the key and the remedy."""
