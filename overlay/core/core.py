"""The overlay of one node, without I/O: events in, actions out; time and randomness are arguments."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from overlay.core.actions import Action
from overlay.core.events import Event
from overlay.core.options import CoreOptions
from overlay.core.types import BlockHash, Load, NodeId
from overlay.core.views import PeerView


class Core:
    """Membership, anti-entropy and the prefix index of one node.

    `stored` is what earlier runs asked to Persist. `unix_ms` only seeds the epoch, which rises even
    when the clock steps back. `now` is any monotonic clock in seconds and never falls.
    """

    def __init__(
        self, options: CoreOptions, rng: random.Random, unix_ms: int, stored: Mapping[str, bytes]
    ) -> None: ...

    def handle(self, now: float, event: Event) -> list[Action]:
        """Takes one event; returns what is to be done about it, in order. The first is Started."""
        ...

    def match(self, hashes: Sequence[BlockHash]) -> dict[NodeId, int]:
        """How many leading blocks of a prompt each peer is believed to have; peers with none are left out."""
        ...

    def peers(self, now: float) -> tuple[PeerView, ...]:
        """Every peer known, candidates and the dead included, sorted by id."""
        ...

    def own_load(self) -> Load:
        """This node's load, stamped with its epoch and a sequence that rises with every change."""
        ...
