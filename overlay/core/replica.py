"""One peer's advertised set, as held here."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from overlay.core.changes import Change, History
from overlay.core.digest import Digester, SetDigest, in_ranges
from overlay.core.errors import ProtocolError
from overlay.core.hashes import EMPTY, to_array
from overlay.core.limits import MAX_HASHES_PER_ORIGIN
from overlay.core.messages import Hashes, Head, Snapshot
from overlay.core.prefix_index import PrefixIndex
from overlay.core.types import Epoch, NodeId, Version


class Replica:
    """The set of `origin` at (epoch, version); what it holds is in the prefix index.

    Invariant: at every (epoch, version) it is exactly the origin's set there. Epochs never fall, and
    versions never fall within an epoch. Epoch 0 means that nothing is known yet.
    """

    __slots__ = (
        "_digester",
        "_history",
        "_index",
        "_list",
        "_staged",
        "current_at",
        "digest",
        "epoch",
        "head",
        "origin",
        "refetch",
        "repairs",
        "retired",
        "version",
        "wanted_at",
    )

    def __init__(self, origin: NodeId, index: PrefixIndex, digester: Digester) -> None:
        self.origin = origin
        self.epoch = Epoch(0)
        self.version = Version(0)
        self.digest = SetDigest()
        self.head: Head | None = None
        self.current_at: float | None = None
        self.wanted_at: float | None = None
        self.refetch = False
        self.repairs = 0
        self.retired = False
        self._index = index
        self._digester = digester
        self._list = array("Q")
        self._staged: Staging | None = None
        self._history = History()

    @property
    def staging(self) -> bool:
        """Whether part of a snapshot has come in."""
        return self._staged is not None

    @property
    def staged(self) -> int:
        """How many hashes of a snapshot have come in."""
        return self._staged.hashes if self._staged is not None else 0

    @property
    def lags(self) -> bool:
        """Whether it holds less than a head has promised, or what it holds must be fetched anew."""
        head = self.head
        if head is None or self.retired:
            return False
        return self.refetch or (head.epoch, head.version) > (self.epoch, self.version)

    def behind(self, epoch: Epoch, version: Version) -> bool:
        """Whether (epoch, version) is news."""
        return (epoch, version) > (self.epoch, self.version)

    def after(self, change: Change) -> SetDigest:
        """The digest that `apply` would come to."""
        gone = self._index.owned(self.origin, change.removed.tolist())
        present = set(self._index.owned(self.origin, change.added.tolist()))
        news = [block for block in change.added.tolist() if block not in present]
        return self._digester.changed(self.digest, to_array(news), to_array(gone))

    def apply(self, change: Change) -> None:
        """Moves on to a later version of the same epoch by its net changes."""
        if self.digest.count + len(change.added) > MAX_HASHES_PER_ORIGIN:
            raise ProtocolError(f"a set of more than {MAX_HASHES_PER_ORIGIN} blocks")
        gone = self._index.remove(self.origin, change.removed.tolist())
        news = self._index.add(self.origin, change.added.tolist())
        self._list.extend(news)
        self.digest = self._digester.changed(self.digest, to_array(news), to_array(gone))
        self.version = change.version_to
        self._history.append(change)
        self._compact()

    def since(self, epoch: Epoch, version: Version) -> Change | None:
        """What changed since (epoch, version), where that is remembered."""
        return self._history.since(version) if epoch == self.epoch else None

    def restart(self, epoch: Epoch) -> None:
        """Begins a higher epoch, whose version 0 is the empty set."""
        self._index.remove(self.origin, self._list)
        del self._list[:]
        self.epoch, self.version = epoch, Version(0)
        self.digest = SetDigest()
        self._history.clear()
        self._staged = None
        self.refetch = False
        if self.head is not None and self.head.epoch < epoch:
            self.head = None

    def retire(self) -> None:
        """Takes the blocks out of the index until the origin is heard of again.

        The epoch is remembered, so that nothing older comes back, and so is the signed head, so that an
        origin that lost its disk can be reminded.
        """
        self._index.retire(self.origin, self._list)
        del self._list[:]
        self.version = Version(0)
        self.digest = SetDigest()
        self._history.clear()
        self._staged = None
        self.current_at = None
        self.refetch = False
        self.retired = True

    def stage(self, part: Snapshot) -> Hashes | None:
        """Keeps one part of a snapshot; returns all of it when complete, without swapping it in."""
        staged = self._staged
        if staged is None or (part.epoch, part.version) > (staged.epoch, staged.version):
            self._staged = staged = Staging(part.epoch, part.version, part.chunks)
        if (part.epoch, part.version, part.chunks) != (staged.epoch, staged.version, staged.chunks):
            return None
        whole = staged.take(part)
        if whole is not None:
            self._staged = None
        return whole

    def swap(self, epoch: Epoch, version: Version, hashes: Hashes) -> None:
        """Becomes the set `hashes`, whose elements are distinct, at (epoch, version)."""
        old = set(self._index.owned(self.origin, self._list))
        new = hashes.tolist()
        self._index.remove(self.origin, old.difference(new))
        self._index.add(self.origin, new)
        self._list = array("Q", new)
        self.epoch, self.version = epoch, version
        self.digest = self._digester.digest(hashes)
        self._history.clear()
        self.refetch = False
        if self._staged is not None and not self.behind(self._staged.epoch, self._staged.version):
            self._staged = None

    def replace_ranges(self, ranges: bytes, hashes: Hashes) -> None:
        """Repairs: holds exactly `hashes` in `ranges`, and elsewhere what it held."""
        mine = self.hashes()
        kept = mine[~in_ranges(mine, ranges)]
        self.swap(self.epoch, self.version, np.concatenate([kept, np.unique(hashes)]))

    def hashes(self) -> Hashes:
        """The whole set, sorted."""
        return np.unique(to_array(self._index.owned(self.origin, self._list)))

    def _compact(self) -> None:
        """The list may hold blocks that are gone or twice; not for long."""
        if len(self._list) > 2 * self.digest.count + 64:
            self._list = array("Q", self.hashes().tolist())


class Staging:
    """The parts of one snapshot that have come in."""

    __slots__ = ("_parts", "chunks", "epoch", "hashes", "version")

    def __init__(self, epoch: Epoch, version: Version, chunks: int) -> None:
        self.epoch = epoch
        self.version = version
        self.chunks = chunks
        self.hashes = 0
        self._parts: dict[int, Hashes] = {}

    def take(self, part: Snapshot) -> Hashes | None:
        """Adds one part; the whole set, distinct and sorted, once all are there."""
        if part.chunk not in self._parts:
            self._parts[part.chunk] = part.hashes
            self.hashes += len(part.hashes)
        if len(self._parts) < self.chunks:
            return None
        whole: Iterable[Hashes] = self._parts.values()
        return np.unique(np.concatenate([EMPTY, *whole]))
