"""The outline of a prefix cache: the tree's true shape, its most used part when it is large."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_hash import BlockHasher, Namespace
from engine.blocks import BlockPool
from engine.outline import CachedRun
from engine.prefix_cache import PrefixCache
from tests.unit.engine.test_prefix_cache import HASHER, MODEL, SIZE, make_cache, store

SYSTEM = [1, 2, 3, 4, 5, 6, 7, 8]


def test_runs_end_where_prompts_part_and_count_their_readers() -> None:
    cache = make_cache()
    ada, bob = [*SYSTEM, 10, 11, 12, 13], [*SYSTEM, 20, 21, 22, 23]
    cache.release(store(cache, ada))
    cache.release(store(cache, bob))
    store(cache, ada)
    first, second, _ = HASHER.prefix(MODEL, ada)[0], *HASHER.prefix(MODEL, ada)[1:]
    tails = [HASHER.prefix(MODEL, tokens)[2] for tokens in (ada, bob)]
    assert cache.outline(8) == (
        CachedRun(None, 0, 2, 2, 1, first, second),
        CachedRun(0, 2, 1, 1, 1, tails[0], tails[0]),
        CachedRun(0, 2, 1, 0, 0, tails[1], tails[1]),
    )


def test_an_empty_cache_has_no_outline() -> None:
    assert make_cache().outline(8) == ()


def test_namespaces_each_start_at_the_root() -> None:
    cache = make_cache()
    for salt in (b"", b"tenant"):
        store(cache, SYSTEM, Namespace(b"model", salt))
    runs = cache.outline(8)
    assert [run.parent for run in runs] == [None, None]
    assert runs[0].first_hash != runs[1].first_hash


prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(prompts, st.integers(1, 12))
def test_a_full_outline_is_the_tree_and_a_short_one_its_most_used_part(
    blocks_of_prompts: list[list[int]], limit: int
) -> None:
    cache = PrefixCache(BlockPool(1024), BlockHasher(b"0123456789abcdef", SIZE))
    for blocks in blocks_of_prompts:
        cache.release(store(cache, [token for block in blocks for token in [block] * SIZE]))
    whole, part = cache.outline(1024), cache.outline(limit)
    assert sum(run.blocks for run in whole) == cache.cached_blocks
    assert part == whole[:limit]
    for run in whole:
        if run.parent is None:
            assert run.depth == 0
        else:
            above = whole[run.parent]
            assert run.depth == above.depth + above.blocks
            assert run.hits <= above.hits
    assert [run.hits for run in whole] == sorted((run.hits for run in whole), reverse=True)
