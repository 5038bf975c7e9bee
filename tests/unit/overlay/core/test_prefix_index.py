from __future__ import annotations

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.core import prefix_index
from overlay.core.prefix_index import PrefixIndex
from overlay.core.types import BlockHash, NodeId

NAMES = [NodeId(name) for name in "abcdefgh"]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "retire"]),
        st.sampled_from(NAMES),
        st.lists(st.integers(0, 12), max_size=10),
    ),
    max_size=40,
)


@given(OPERATIONS, st.lists(st.integers(0, 12).map(BlockHash), max_size=12, unique=True))
@settings(max_examples=300)
def test_index_equals_a_dict_of_sets(
    operations: list[tuple[str, NodeId, list[int]]], prompt: list[BlockHash]
) -> None:
    index = PrefixIndex()
    model: dict[NodeId, set[int]] = {}
    for what, owner, blocks in operations:
        held = model.setdefault(owner, set())
        if what == "add":
            assert set(index.add(owner, blocks)) == set(blocks) - held
            held.update(blocks)
        elif what == "remove":
            assert set(index.remove(owner, blocks)) == set(blocks) & held
            held.difference_update(blocks)
        else:
            index.retire(owner, held)
            held.clear()
    for owner, held in model.items():
        assert set(index.owned(owner, range(13))) == held
    assert len(index) == len(set().union(*model.values()))
    depths = {}
    for owner, held in model.items():
        depth = 0
        while depth < len(prompt) and prompt[depth] in held:
            depth += 1
        if depth:
            depths[owner] = depth
    assert index.match(prompt) == depths


def test_a_slot_used_again_brings_nothing_back() -> None:
    index = PrefixIndex()
    index.add(NAMES[0], [1, 2])
    index.add(NAMES[1], [1])
    index.retire(NAMES[0], [1, 2])
    index.add(NAMES[2], [3])
    assert index.match([BlockHash(1), BlockHash(2)]) == {NAMES[1]: 1}
    assert index.match([BlockHash(3)]) == {NAMES[2]: 1}


def test_more_masks_than_are_shared_change_no_answer() -> None:
    index = PrefixIndex()
    owners = [NodeId(f"n{number}") for number in range(14)]
    for block in range(1 << 14):
        for number, owner in enumerate(owners):
            if block >> number & 1:
                index.add(owner, [block])
    assert prefix_index._MAX_SHARED_MASKS < 1 << 14
    for block in range(0, 1 << 14, 997):
        expected = {owner: 1 for number, owner in enumerate(owners) if block >> number & 1}
        assert index.match([BlockHash(block)]) == expected


def test_a_block_takes_less_than_the_budget_assumes() -> None:
    index = PrefixIndex()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for owner in range(16):
        first = owner << 32
        index.add(
            NodeId(f"n{owner}"), ((first + block) * 0x9E3779B97F4A7C15 % 2**64 for block in range(20_000))
        )
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken <= index.bytes
    assert index.bytes / len(index) <= 120
