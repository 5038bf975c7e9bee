"""The prefix cache as the engine's tree behaves, over block hashes alone.

A hash names a whole prefix, so a dict is the tree. Nothing refers to tokens or memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from overlay.core.types import BlockHash


class BlockCache:
    """At most `capacity` blocks: cached ones, in use or idle, and private ones of running requests.

    Idle blocks are evicted in the order in which they were released, the deepest of a path first.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._references: dict[BlockHash, int] = {}
        self._idle: OrderedDict[BlockHash, None] = OrderedDict()
        self._private = 0
        self._stored: dict[BlockHash, None] = {}
        self._removed: dict[BlockHash, None] = {}

    def __len__(self) -> int:
        return len(self._references)

    @property
    def used(self) -> int:
        """Blocks that running requests hold."""
        return self._private + len(self._references) - len(self._idle)

    @property
    def available(self) -> int:
        """Blocks that could be handed out now, by eviction if need be."""
        return self._capacity - self.used

    def depth(self, hashes: Sequence[BlockHash], limit: int) -> int:
        """How many leading blocks are cached, at most `limit`."""
        references = self._references
        depth = 0
        for block in hashes[:limit]:
            if block not in references:
                break
            depth += 1
        return depth

    def acquire(self, path: Sequence[BlockHash]) -> None:
        """References blocks that are cached."""
        for block in path:
            if not self._references[block]:
                del self._idle[block]
            self._references[block] += 1

    def release(self, path: Sequence[BlockHash]) -> None:
        """Gives references back."""
        for block in reversed(path):
            self._references[block] -= 1
            if not self._references[block]:
                self._idle[block] = None

    def allocate(self, count: int) -> bool:
        """Takes private blocks; False, and none, when there are too few."""
        if count > self.available:
            return False
        free = self._capacity - self._private - len(self._references)
        for _ in range(count - free):
            block, _ = self._idle.popitem(last=False)
            del self._references[block]
            self._note(block, self._removed, self._stored)
        self._private += count
        return True

    def give_back(self, count: int) -> None:
        """Frees private blocks that never became cached."""
        self._private -= count

    def insert(self, block: BlockHash) -> None:
        """Caches a private block, referenced once; if it is cached already, the private one is freed."""
        self._private -= 1
        if block in self._references:
            self.acquire((block,))
            return
        self._references[block] = 1
        self._note(block, self._stored, self._removed)

    def take_events(self) -> tuple[list[BlockHash], list[BlockHash]]:
        """What was stored and removed since the last call, net."""
        events = list(self._stored), list(self._removed)
        self._stored.clear()
        self._removed.clear()
        return events

    def _note(self, block: BlockHash, into: dict[BlockHash, None], other: dict[BlockHash, None]) -> None:
        if block in other:
            del other[block]
        else:
            into[block] = None
