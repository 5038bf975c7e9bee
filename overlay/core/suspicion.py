"""How long a suspect has to refute (Lifeguard, Dadgar et al., arXiv 1707.00788, section IV.B)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from overlay.core.timing import Timing
from overlay.core.types import NodeId


@dataclass(slots=True, eq=False)
class Suspicion:
    """Starts long and shrinks with each independent confirmation, to `shortest`."""

    started_at: float
    shortest: float
    longest: float
    wanted: int
    reporters: set[NodeId] = field(default_factory=set)

    @classmethod
    def begin(cls, now: float, timing: Timing, mesh_size: int, *, alone: bool = False) -> Suspicion:
        """A suspicion in a mesh of `mesh_size` nodes, this one and the suspect included.

        `alone` says that nobody who could confirm is in earshot: then it is short from the start.
        """
        shortest = timing.suspicion * max(1.0, math.log10(mesh_size)) * timing.heartbeat_s
        wanted = 0 if alone else min(timing.suspicion_confirmations, mesh_size - 2)
        longest = shortest * timing.suspicion_max_factor if wanted > 0 else shortest
        return cls(now, shortest, longest, wanted)

    def confirm(self, reporter: NodeId) -> bool:
        """Notes who else suspects; whether it was news."""
        if reporter in self.reporters or len(self.reporters) > self.wanted:
            return False
        self.reporters.add(reporter)
        return True

    @property
    def deadline(self) -> float:
        """When the suspect is dead. The first reporter only starts the suspicion."""
        confirmations = max(0, len(self.reporters) - 1)
        if self.wanted <= 0 or confirmations >= self.wanted:
            return self.started_at + self.shortest
        share = math.log(confirmations + 1) / math.log(self.wanted + 1)
        return self.started_at + self.longest - (self.longest - self.shortest) * share
