"""How busy the peers and this node are: fresh, or useless."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from overlay.core.events import LinkId
from overlay.core.links import LinkTable
from overlay.core.messages import LoadReport
from overlay.core.outbox import Outbox
from overlay.core.timers import Timers
from overlay.core.timing import Timing
from overlay.core.types import Epoch, Load, NodeId

RTT_WEIGHT = 0.25
"""Of a new measurement in the smoothed round trip; RFC 6298 takes 1/8 at a hundred samples more."""


@dataclass(slots=True, eq=False)
class LoadBook:
    """The latest load report of each peer, and this node's own on its way to them."""

    own: Load
    links: LinkTable
    timing: Timing
    timers: Timers
    outbox: Outbox
    _loads: dict[NodeId, tuple[Load, float]] = field(default_factory=dict)
    _rtts: dict[NodeId, float] = field(default_factory=dict)
    _told_at: float = float("-inf")
    _told: int = -1
    _planned: bool = False

    def change(self, now: float, load: Load) -> None:
        """This node measured itself anew; tells the others if that is news."""
        stamped = replace(load, epoch=self.own.epoch, sequence=self.own.sequence)
        if stamped == self.own:
            return
        self.own = replace(stamped, sequence=self.own.sequence + 1)
        self._plan(now)

    def restart(self, epoch: Epoch) -> None:
        """The node's epoch rose."""
        self.own = replace(self.own, epoch=epoch, sequence=0)
        self._told = -1

    def keep_fresh(self, now: float) -> None:
        """Tells an unchanged load again when it grows old."""
        if now - self._told_at >= self.timing.load_max_s * 0.999:
            self._tell(now)
        self.timers.at(self._told_at + self.timing.load_max_s, self.keep_fresh)

    def report_to(self, link: LinkId) -> None:
        """Tells a peer that just connected."""
        self.outbox.send(link, LoadReport(None, self.own))

    def heard(self, now: float, node_id: NodeId, load: Load) -> None:
        """A report of a peer came in; older ones than the latest are dropped."""
        known = self._loads.get(node_id)
        if known is None or (load.epoch, load.sequence) >= (known[0].epoch, known[0].sequence):
            self._loads[node_id] = (load, now)

    def measured(self, node_id: NodeId, rtt_s: float) -> None:
        """One round trip to a peer took this long."""
        known = self._rtts.get(node_id)
        self._rtts[node_id] = rtt_s if known is None else known + RTT_WEIGHT * (rtt_s - known)

    def load_of(self, node_id: NodeId) -> tuple[Load, float] | None:
        """A peer's load, and when it came in."""
        return self._loads.get(node_id)

    def rtt_of(self, node_id: NodeId) -> float | None:
        return self._rtts.get(node_id)

    def forget(self, node_id: NodeId) -> None:
        self._loads.pop(node_id, None)
        self._rtts.pop(node_id, None)

    def _plan(self, now: float) -> None:
        if self._planned:
            return
        due = self._told_at + self.timing.load_min_s
        if due <= now:
            self._tell(now)
        else:
            self._planned = True
            self.timers.at(due, self._tell_planned)

    def _tell_planned(self, now: float) -> None:
        self._planned = False
        if self._told != self.own.sequence:
            self._tell(now)

    def _tell(self, now: float) -> None:
        self._told_at = now
        self._told = self.own.sequence
        report = LoadReport(None, self.own)
        for link in self.links.ready():
            if not link.slow:
                self.outbox.send(link.id, report)
