"""The prefix cache: exact matching, ownership of blocks, eviction order, events."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_hash import BlockHasher, Namespace
from engine.blocks import BlockPool
from engine.prefix_cache import Node, PrefixCache

SIZE = 4
HASHER = BlockHasher(b"0123456789abcdef", SIZE)
MODEL = Namespace(b"model")


def make_cache(blocks: int = 8) -> PrefixCache:
    return PrefixCache(BlockPool(blocks), HASHER)


def store(cache: PrefixCache, tokens: list[int], namespace: Namespace = MODEL) -> list[Node]:
    """Caches all full blocks of tokens as a finished request would; returns the path, still referenced."""
    full = len(tokens) // SIZE
    path = cache.peek(namespace, tokens, full)
    cache.acquire(path)
    blocks = cache.allocate(full - len(path))
    assert blocks is not None
    for block in blocks:
        start = len(path) * SIZE
        parent = path[-1] if path else None
        path.append(cache.insert(namespace, parent, tokens[start : start + SIZE], block))
    return path


def test_matches_the_longest_common_prefix_of_whole_blocks() -> None:
    cache = make_cache()
    store(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert len(cache.peek(MODEL, [1, 2, 3, 4, 5, 6, 7, 8, 9], 9)) == 2
    assert len(cache.peek(MODEL, [1, 2, 3, 4, 5, 6, 7, 0], 9)) == 1
    assert cache.peek(MODEL, [0, 2, 3, 4], 9) == []
    assert len(cache.peek(MODEL, [1, 2, 3, 4, 5, 6, 7, 8], 1)) == 1


def test_namespaces_never_share_blocks() -> None:
    cache = make_cache()
    store(cache, [1, 2, 3, 4], Namespace(b"model", b"alice"))
    assert cache.peek(Namespace(b"model", b"bob"), [1, 2, 3, 4], 1) == []
    assert cache.peek(Namespace(b"other", b"alice"), [1, 2, 3, 4], 1) == []


def test_events_carry_the_hashes_a_peer_computes_from_the_tokens() -> None:
    cache = make_cache()
    tokens = list(range(12))
    path = store(cache, tokens)
    assert list(cache.take_events().stored) == HASHER.prefix(MODEL, tokens)
    assert cache.take_events().stored == ()
    cache.release(path)
    cache.flush()
    assert set(cache.take_events().removed) == set(HASHER.prefix(MODEL, tokens))


def test_stored_and_removed_within_one_step_is_no_event() -> None:
    cache = make_cache()
    cache.release(store(cache, [1, 2, 3, 4]))
    cache.flush()
    events = cache.take_events()
    assert (events.stored, events.removed) == ((), ())


def test_eviction_takes_the_longest_unused_and_children_before_parents() -> None:
    cache = make_cache(4)
    cache.release(store(cache, [1, 1, 1, 1, 2, 2, 2, 2]))
    cache.release(store(cache, [3, 3, 3, 3, 4, 4, 4, 4]))
    cache.release(store(cache, [1, 1, 1, 1, 2, 2, 2, 2]))
    assert cache.allocate(1) is not None
    assert len(cache.peek(MODEL, [3, 3, 3, 3, 4, 4, 4, 4], 2)) == 1
    assert len(cache.peek(MODEL, [1, 1, 1, 1, 2, 2, 2, 2], 2)) == 2


def test_referenced_blocks_are_never_evicted() -> None:
    cache = make_cache(3)
    path = store(cache, [1, 1, 1, 1, 2, 2, 2, 2])
    assert cache.available_blocks == 1
    assert cache.allocate(2) is None
    cache.release(path)
    assert cache.allocate(3) is not None


def test_the_second_to_compute_a_block_gives_its_own_back() -> None:
    cache = make_cache()
    first = store(cache, [1, 2, 3, 4])
    blocks = cache.allocate(1)
    assert blocks is not None
    again = cache.insert(MODEL, None, [1, 2, 3, 4], blocks[0])
    assert again is first[0]
    assert again.references == 2
    cache.check()
    assert cache.used_blocks == 1


def test_check_catches_broken_books() -> None:
    cache = make_cache()
    path = store(cache, [1, 2, 3, 4])
    path[0].references = 0
    with pytest.raises(AssertionError, match="eviction queue"):
        cache.check()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), blocks=st.integers(2, 12))
def test_any_use_keeps_the_books_and_the_events_true(seed: int, blocks: int) -> None:
    """Random requests over few distinct tokens: integrity holds, and events replay to what is cached."""
    rng = random.Random(seed)
    cache = make_cache(blocks)
    held: list[tuple[list[Node], list[int]]] = []
    advertised: set[int] = set()
    for _ in range(60):
        if held and rng.random() < 0.45:
            path, private = held.pop(rng.randrange(len(held)))
            cache.release_private(private)
            cache.release(path)
        else:
            tokens = [rng.randrange(2) for _ in range(SIZE * rng.randrange(1, 4))]
            path = cache.peek(MODEL, tokens, len(tokens) // SIZE)
            cache.acquire(path)
            fresh = cache.allocate(len(tokens) // SIZE - len(path))
            if fresh is None:
                cache.release(path)
                continue
            while fresh and rng.random() < 0.8:
                start = len(path) * SIZE
                parent = path[-1] if path else None
                path.append(cache.insert(MODEL, parent, tokens[start : start + SIZE], fresh.pop(0)))
            held.append((path, fresh))
        cache.check()
        events = cache.take_events()
        assert not advertised.intersection(events.stored)
        assert advertised.issuperset(events.removed)
        advertised |= set(events.stored)
        advertised -= set(events.removed)
        assert len(advertised) == cache.cached_blocks
    for path, private in held:
        cache.release_private(private)
        cache.release(path)
    assert cache.available_blocks == blocks
    assert cache.used_blocks == 0


def test_finds_the_block_that_begins_with_the_most_of_the_tokens() -> None:
    cache = make_cache()
    path = store(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    other = store(cache, [1, 2, 3, 4, 5, 6, 9, 9])[1]
    assert cache.closest(MODEL, path[0], [5, 6, 9]) == (other, 3)
    assert cache.closest(MODEL, path[0], [5, 6, 7, 8]) == (path[1], 4)
    assert cache.closest(MODEL, None, [1, 2, 0]) == (path[0], 2)
    assert cache.closest(MODEL, path[0], [4, 6, 7]) is None
    assert cache.closest(MODEL, path[0], []) is None
    assert cache.closest(Namespace(b"model", b"bob"), None, [1, 2]) is None
