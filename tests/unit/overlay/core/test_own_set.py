from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from overlay.core import own_set
from overlay.core.digest import Digester
from overlay.core.own_set import OwnSet
from overlay.core.types import BlockHash, Epoch, Version

SOME_BLOCKS = st.lists(st.integers(0, 40).map(BlockHash), max_size=8)
DIGESTER = Digester(b"k" * 16)


class OwnSetMachine(RuleBasedStateMachine):
    """The set against a plain model: what it was at every version."""

    def __init__(self) -> None:
        super().__init__()
        self.own = OwnSet(Epoch(5), DIGESTER)
        self.blocks: set[int] = set()
        self.versions: dict[int, set[int]] = {0: set()}

    @rule(stored=SOME_BLOCKS, removed=SOME_BLOCKS)
    def update(self, stored: list[BlockHash], removed: list[BlockHash]) -> None:
        self.own.update(stored, removed)
        self.blocks = self.blocks - set(removed) | set(stored)

    @rule()
    def commit(self) -> None:
        before = self.own.version
        change = self.own.commit()
        if self.blocks == self.versions[before]:
            assert change is None
            assert self.own.version == before
            return
        assert change is not None
        assert (change.version_from, change.version_to) == (before, before + 1)
        self.versions[before + 1] = set(self.blocks)

    @rule(empty=st.booleans())
    def restart(self, empty: bool) -> None:
        self.own.restart(Epoch(self.own.epoch + 1), empty=empty)
        if empty:
            self.blocks = set()
        self.versions = {0: set()}

    @invariant()
    def any_version_above_the_floor_can_be_brought_up_to_date(self) -> None:
        present = self.versions[self.own.version]
        assert set(self.own.hashes().tolist()) == present
        assert self.own.digest == DIGESTER.digest(self.own.hashes())
        for version, blocks in self.versions.items():
            change = self.own.since(Version(version))
            if version < self.own.floor:
                assert change is None
                continue
            assert change is not None
            result = blocks - set(change.removed.tolist()) | set(change.added.tolist())
            assert result == present, f"from {version}"


TestOwnSet = OwnSetMachine.TestCase
TestOwnSet.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_log_is_trimmed_and_the_floor_rises() -> None:
    own = OwnSet(Epoch(1), DIGESTER)
    for version in range(10):
        blocks = [BlockHash(version * 1000 + block) for block in range(1000)]
        own.update(blocks, ())
        own.commit()
        own.update((), blocks)
        own.commit()
    assert len(own) == 0
    assert own.floor > 0
    assert own.since(Version(own.floor - 1)) is None
    change = own.since(own.floor)
    assert change is not None
    assert len(change) <= own_set.MIN_LOG
    assert own.since(Version(own.version + 1)) is None


def test_a_block_stored_and_removed_between_commits_is_no_change() -> None:
    own = OwnSet(Epoch(1), DIGESTER)
    own.update([BlockHash(1)], ())
    own.update((), [BlockHash(1)])
    assert own.commit() is None
    assert own.version == 0
