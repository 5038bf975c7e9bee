"""The set of blocks this node has cached, with the log that tells others what changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from overlay.core.changes import Change
from overlay.core.digest import Digester, SetDigest
from overlay.core.hashes import to_array
from overlay.core.messages import Hashes
from overlay.core.types import BlockHash, Epoch, Version

MIN_LOG = 4_096


class OwnSet:
    """A versioned set with one writer.

    Invariants: the set at (epoch, version) never changes; the log holds the latest operation of each
    hash, oldest first, of all versions above `floor`.
    """

    def __init__(self, epoch: Epoch, digester: Digester) -> None:
        self.epoch = epoch
        self.version = Version(0)
        self.floor = Version(0)
        self.digest = SetDigest()
        self._digester = digester
        self._present: dict[int, None] = {}
        self._log: OrderedDict[int, tuple[Version, bool]] = OrderedDict()
        self._pending: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self._present)

    @property
    def changing(self) -> int:
        """How many changes wait for the next commit."""
        return len(self._pending)

    def update(self, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> bool:
        """Gathers changes for the next commit; whether there are any now."""
        for block in removed:
            self._pending[block] = False
        for block in stored:
            self._pending[block] = True
        return bool(self._pending)

    def commit(self) -> Change | None:
        """Makes the gathered changes the next version; None when they come to nothing."""
        pending, self._pending = self._pending, {}
        added = [block for block, stored in pending.items() if stored and block not in self._present]
        removed = [block for block, stored in pending.items() if not stored and block in self._present]
        if not added and not removed:
            return None
        before, self.version = self.version, Version(self.version + 1)
        for block in removed:
            del self._present[block]
            self._record(block, stored=False)
        for block in added:
            self._present[block] = None
            self._record(block, stored=True)
        change = Change(before, self.version, to_array(added), to_array(removed))
        self.digest = self._digester.changed(self.digest, change.added, change.removed)
        self._trim()
        return change

    def since(self, version: Version) -> Change | None:
        """What changed since `version`; None when the log doesn't reach back that far."""
        if not self.floor <= version <= self.version:
            return None
        added: list[int] = []
        removed: list[int] = []
        for block, (when, stored) in reversed(self._log.items()):
            if when <= version:
                break
            (added if stored else removed).append(block)
        return Change(version, self.version, to_array(added), to_array(removed))

    def hashes(self) -> Hashes:
        """The whole set at the present version."""
        return to_array(self._present)

    def restart(self, epoch: Epoch, *, empty: bool) -> None:
        """Begins a new epoch, of the same blocks or of none; blocks kept are version 1's."""
        blocks = () if empty else tuple(self._present)
        if empty:
            self._pending.clear()
        self.epoch = epoch
        self.version = self.floor = Version(0)
        self.digest = SetDigest()
        self._present.clear()
        self._log.clear()
        kept = dict.fromkeys(blocks, True)
        self._pending = kept | self._pending

    def _record(self, block: int, *, stored: bool) -> None:
        self._log[block] = (self.version, stored)
        self._log.move_to_end(block)

    def _trim(self) -> None:
        """A log longer than the set costs more than a snapshot would."""
        limit = max(MIN_LOG, len(self._present))
        while len(self._log) > limit:
            _, (version, _) = self._log.popitem(last=False)
            self.floor = max(self.floor, version)
