from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.core.digest import Digester, SetDigest, in_ranges
from overlay.core.hashes import to_array

BLOCKS = st.sets(st.integers(0, 2**64 - 1), max_size=60)
DIGESTER = Digester(b"k" * 16)


@given(BLOCKS, BLOCKS)
def test_digest_of_changes_is_digest_of_the_result(before: set[int], after: set[int]) -> None:
    added, removed = to_array(after - before), to_array(before - after)
    changed = DIGESTER.changed(DIGESTER.digest(to_array(before)), added, removed)
    assert changed == DIGESTER.digest(to_array(sorted(after)))


@given(BLOCKS, BLOCKS)
def test_different_sets_have_different_digests(one: set[int], other: set[int]) -> None:
    assert (DIGESTER.digest(to_array(one)) == DIGESTER.digest(to_array(other))) == (one == other)


@pytest.mark.parametrize("size", [23, 24, 25, 1000])
def test_small_and_large_sets_are_summed_alike(size: int) -> None:
    blocks = np.random.default_rng(size).integers(0, 2**64, size, dtype=np.uint64)
    parts = SetDigest()
    for block in blocks:
        parts = DIGESTER.changed(parts, np.array([block], dtype=np.uint64), blocks[:0])
    assert parts == DIGESTER.digest(blocks)


def test_another_key_gives_another_digest() -> None:
    assert Digester(b"j" * 16).digest(to_array([1])) != DIGESTER.digest(to_array([1]))


@given(BLOCKS)
def test_range_digests_sum_up_to_the_whole(blocks: set[int]) -> None:
    hashes = to_array(blocks)
    low, high = DIGESTER.ranges(hashes).sum(axis=0, dtype=np.uint64)
    whole = DIGESTER.digest(hashes)
    assert (int(low), int(high)) == (whole.low, whole.high)


@given(BLOCKS, st.binary(max_size=8))
def test_in_ranges_looks_at_the_top_byte(blocks: set[int], ranges: bytes) -> None:
    hashes = to_array(blocks)
    expected = [(block >> 56) in ranges for block in hashes.tolist()]
    assert in_ranges(hashes, ranges).tolist() == expected
