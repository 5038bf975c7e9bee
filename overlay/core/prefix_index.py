"""The prefix index: which peers are believed to have which blocks.

One dict from block hash to the set of its owners, as a bit mask over slots; equal masks share one
integer, so that a block costs a dict entry and a key: about 90 bytes, whatever the number of owners.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from overlay.core.types import BlockHash, NodeId

BYTES_PER_BLOCK = 112
"""A dict entry right after the dict grew (56 bytes), its key (48) and a share of the masks."""

BYTES_PER_CLAIM = 8
"""One owner's own list of its blocks."""

_MAX_SHARED_MASKS = 4_096


class PrefixIndex:
    """Owners of block hashes; a lookup returns every owner's depth in one pass."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        self._slots: dict[NodeId, int] = {}
        self._owners: list[NodeId | None] = []
        self._free: list[int] = []
        self._claims = 0

    def __len__(self) -> int:
        return len(self._masks)

    @property
    def bytes(self) -> int:
        """What the index and its owners' lists take, estimated from above."""
        return len(self._masks) * BYTES_PER_BLOCK + self._claims * BYTES_PER_CLAIM

    def add(self, owner: NodeId, blocks: Iterable[int]) -> list[int]:
        """Notes that `owner` has `blocks`; returns those that are news."""
        bit = 1 << self._slot(owner)
        alone = self._share(bit)
        masks = self._masks
        news = []
        for block in blocks:
            mask = masks.get(block)
            if mask is None:
                masks[block] = alone
            elif mask & bit:
                continue
            else:
                masks[block] = self._share(mask | bit)
            news.append(block)
        self._claims += len(news)
        return news

    def remove(self, owner: NodeId, blocks: Iterable[int]) -> list[int]:
        """Notes that `owner` no longer has `blocks`; returns those it had."""
        slot = self._slots.get(owner)
        if slot is None:
            return []
        bit = 1 << slot
        masks = self._masks
        gone = []
        for block in blocks:
            mask = masks.get(block, 0)
            if not mask & bit:
                continue
            gone.append(block)
            if mask == bit:
                del masks[block]
            else:
                masks[block] = self._share(mask ^ bit)
        self._claims -= len(gone)
        return gone

    def owned(self, owner: NodeId, blocks: Iterable[int]) -> list[int]:
        """Those of `blocks` that `owner` has."""
        slot = self._slots.get(owner)
        if slot is None:
            return []
        bit = 1 << slot
        masks = self._masks
        return [block for block in blocks if masks.get(block, 0) & bit]

    def retire(self, owner: NodeId, blocks: Iterable[int]) -> None:
        """Forgets an owner, whose blocks are all among `blocks`."""
        self.remove(owner, blocks)
        slot = self._slots.pop(owner, None)
        if slot is not None:
            self._owners[slot] = None
            heapq.heappush(self._free, slot)

    def match(self, blocks: Sequence[BlockHash]) -> dict[NodeId, int]:
        """How many leading `blocks` each owner has; owners of none are left out."""
        masks = self._masks
        depths: dict[NodeId, int] = {}
        active = -1
        depth = 0
        for depth, block in enumerate(blocks):
            mask = masks.get(block, 0)
            if active & mask == active:
                continue
            kept = mask if active == -1 else active & mask
            if active != -1:
                self._note(depths, active ^ kept, depth)
            active = kept
            if not active:
                return depths
        if active != -1:
            self._note(depths, active, depth + 1)
        return depths

    def _note(self, depths: dict[NodeId, int], mask: int, depth: int) -> None:
        while mask:
            low = mask & -mask
            owner = self._owners[low.bit_length() - 1]
            if owner is not None and depth:
                depths[owner] = depth
            mask ^= low

    def _slot(self, owner: NodeId) -> int:
        slot = self._slots.get(owner)
        if slot is None:
            if self._free:
                slot = heapq.heappop(self._free)
                self._owners[slot] = owner
            else:
                slot = len(self._owners)
                self._owners.append(owner)
            self._slots[owner] = slot
        return slot

    def _share(self, mask: int) -> int:
        """An equal mask that others hold too."""
        shared = self._shared.get(mask)
        if shared is None:
            if len(self._shared) >= _MAX_SHARED_MASKS:
                self._shared.clear()
            self._shared[mask] = shared = mask
        return shared
