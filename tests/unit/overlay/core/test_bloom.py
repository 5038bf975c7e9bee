from __future__ import annotations

import numpy as np
import pytest

from overlay.core import bloom
from overlay.core.bloom import FilterLookup
from overlay.core.limits import MAX_FILTER_BYTES

RNG = np.random.default_rng(5)


def _random(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return RNG.integers(0, 2**64, count, dtype=np.uint64)


def _flags(bits: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(bits, dtype=np.uint8)


@pytest.mark.parametrize("count", [0, 1, 100, 5_000])
def test_a_filter_forgets_nothing(count: int) -> None:
    hashes = _random(count)
    assert FilterLookup(hashes).depth(_flags(bloom.build(hashes)), bloom.PROBES) == count


def test_a_match_is_over_counted_by_less_than_a_tenth_of_a_block() -> None:
    held = _random(21_000)  # 6.2 bits a block: the worst of the sizes
    bits = _flags(bloom.build(held))
    over = []
    for start in range(0, 20_000, 20):
        prompt = np.concatenate([held[start : start + 20], _random(20)])
        over.append(FilterLookup(prompt).depth(bits, bloom.PROBES) - 20)
    assert min(over) >= 0
    assert np.mean(over) < 0.1


def test_size_is_bounded_and_sound() -> None:
    for count in (0, 10, 1_000, 1_000_000):
        bits = bloom.build(_random(count))
        assert bloom.is_sound(bits, bloom.PROBES)
        assert len(bits) <= MAX_FILTER_BYTES


@pytest.mark.parametrize(("bits", "probes"), [(b"", 4), (b"x" * 100, 4), (b"x" * 32, 0), (b"x" * 32, 99)])
def test_unsound_filters_are_told(bits: bytes, probes: int) -> None:
    assert not bloom.is_sound(bits, probes)
