"""What this node's own engine has cached, as block hashes."""

from __future__ import annotations

from collections.abc import Iterable

from engine.interface import BlockEvents


class OwnBlocks:
    """The hashes of the blocks that the engine has cached."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def __len__(self) -> int:
        return len(self._hashes)

    def apply(self, events: BlockEvents) -> None:
        if events.cleared:
            self._hashes.clear()
        self._hashes.update(events.stored)
        self._hashes.difference_update(events.removed)

    def match(self, hashes: Iterable[int]) -> int:
        """How many leading blocks are cached here."""
        matched = 0
        for block_hash in hashes:
            if block_hash not in self._hashes:
                break
            matched += 1
        return matched
