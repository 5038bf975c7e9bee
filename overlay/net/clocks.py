"""Peers' clocks beside this machine's: no protocol here goes by them, but certificates do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from overlay.core.limits import MAX_MEMBERS
from overlay.core.types import NodeId, short_id
from rumormill.v1 import overlay_pb2 as pb

log = logging.getLogger(__name__)

FAR_S = 60.0
"""Leaves start an hour in the past, so a minute hurts nobody yet; and no clock that is set is off by it."""


class Clocks:
    """Stamps this node's Hellos, and tells once of each peer whose clock is far off."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._told: set[NodeId] = set()

    def stamp(self, frame: pb.Frame) -> pb.Frame:
        if frame.HasField("hello"):
            frame.hello.unix_ms = round(self._wall() * 1000)
        return frame

    def hear(self, peer: NodeId, frame: pb.Frame) -> None:
        if not frame.HasField("hello") or not frame.hello.unix_ms:
            return
        ahead_s = frame.hello.unix_ms / 1000 - self._wall()
        if abs(ahead_s) < FAR_S:
            self._told.discard(peer)
        elif peer not in self._told and len(self._told) < MAX_MEMBERS:
            self._told.add(peer)
            log.warning(
                "the clock of node %s is %s; set both by NTP, since certificates go by clocks",
                short_id(peer),
                describe_skew(ahead_s),
            )


def describe_skew(ahead_s: float) -> str:
    """For people: "95 s ahead of this machine's"."""
    return f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
