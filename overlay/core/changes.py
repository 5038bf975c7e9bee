"""Net changes between two versions of a set, and a short memory of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from overlay.core.hashes import to_array
from overlay.core.messages import Delta, Hashes
from overlay.core.types import Epoch, NodeId, Version

MAX_REMEMBERED = 32
"""Changes remembered of one replica: three quarters of a minute of steady change."""

MAX_REMEMBERED_HASHES = 4_096
"""Blocks in them all: 32 KiB."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Net changes of (version_from, version_to]: each block touched in between, as it ended.

    So it leads to the set at version_to from any version of its span, not from version_from alone.
    """

    version_from: Version
    version_to: Version
    added: Hashes
    removed: Hashes

    def __len__(self) -> int:
        return len(self.added) + len(self.removed)

    @classmethod
    def of(cls, delta: Delta) -> Change:
        return cls(delta.version_from, delta.version_to, delta.added, delta.removed)

    def delta(self, origin: NodeId | None, epoch: Epoch) -> Delta:
        """The frame that tells of it."""
        return Delta(origin, epoch, self.version_from, self.version_to, self.added, self.removed)


class History:
    """The last changes that were applied to a replica, oldest first, for whoever lags behind it.

    Each continues the one before: its span begins at or before the other's end.
    """

    __slots__ = ("_changes", "_hashes")

    def __init__(self) -> None:
        self._changes: deque[Change] = deque()
        self._hashes = 0

    def append(self, change: Change) -> None:
        """Remembers a change, and forgets the oldest ones."""
        self._changes.append(change)
        self._hashes += len(change)
        while len(self._changes) > MAX_REMEMBERED or self._hashes > MAX_REMEMBERED_HASHES:
            self._hashes -= len(self._changes.popleft())

    def clear(self) -> None:
        self._changes.clear()
        self._hashes = 0

    def since(self, version: Version) -> Change | None:
        """What changed since `version`, as one change; None where the memory doesn't reach."""
        news = [change for change in self._changes if change.version_to > version]
        if not news or news[0].version_from > version:
            return None
        stored: dict[int, bool] = {}
        for change in news:
            stored.update(dict.fromkeys(change.removed.tolist(), False))
            stored.update(dict.fromkeys(change.added.tolist(), True))
        added = to_array(block for block, is_stored in stored.items() if is_stored)
        removed = to_array(block for block, is_stored in stored.items() if not is_stored)
        return Change(version, news[-1].version_to, added, removed)
