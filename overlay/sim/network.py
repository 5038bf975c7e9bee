"""The simulated network: latency, loss, duplication, reordering, cuts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Chances are per frame; latency is uniform between its bounds, in seconds, one way.

    A broken connection is noticed after `tcp_timeout_s`, a dial into nothing after `dial_timeout_s`.
    """

    latency_s: tuple[float, float] = (0.0005, 0.005)
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    tcp_timeout_s: float = 20.0
    dial_timeout_s: float = 3.0


@dataclass(slots=True)
class Network:
    """Decides what happens to each frame; nodes are numbers."""

    options: NetworkOptions
    rng: random.Random
    whole: bool = True
    """Whether everyone can reach everyone."""
    calm: bool = field(init=False)
    """Whether every frame arrives once and in order."""
    _groups: dict[int, int] = field(default_factory=dict)
    _one_way: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        options = self.options
        self.calm = not (options.loss or options.duplication or options.reordering)

    def latency(self) -> float:
        shortest, longest = self.options.latency_s
        return shortest + (longest - shortest) * self.rng.random()

    def fates(self) -> list[float]:
        """The latencies at which copies of one frame arrive: none when it is lost."""
        options = self.options
        if options.loss and self.rng.random() < options.loss:
            return []
        copies = [self.latency()]
        if options.duplication and self.rng.random() < options.duplication:
            copies.append(self.latency())
        return copies

    def reordered(self) -> bool:
        return bool(self.options.reordering) and self.rng.random() < self.options.reordering

    def handshake_fails(self) -> bool:
        """A stream's first frames are lost together with the stream."""
        return bool(self.options.loss) and self.rng.random() < self.options.loss

    def partition(self, groups: list[list[int]]) -> None:
        """Nodes of different groups can't reach one another; those in no group form one."""
        self._groups = {node: which for which, group in enumerate(groups) for node in group}
        self.whole = False

    def cut(self, source: int, target: int) -> None:
        """Nothing gets from `source` to `target`; the other way works."""
        self._one_way.add((source, target))
        self.whole = False

    def heal(self) -> None:
        self._groups.clear()
        self._one_way.clear()
        self.whole = True

    def passes(self, source: int, target: int) -> bool:
        """Whether frames get from `source` to `target` now."""
        if self._one_way and (source, target) in self._one_way:
            return False
        if not self._groups:
            return True
        return self._groups.get(source) == self._groups.get(target)
