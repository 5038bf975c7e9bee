"""Order-free digests of sets of block hashes: a count and two keyed sums modulo 2^64.

Sums of a keyed mix make the digest incremental (Clarke et al., "Incremental Multiset Hash Functions",
ASIACRYPT 2003); the mix is the finalizer of SplitMix64 (Steele et al., OOPSLA 2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from overlay.core.messages import Hashes

RANGES = 256
_MASK = (1 << 64) - 1
_SMALL = 24  # below this, plain integers beat numpy's call overhead


@dataclass(frozen=True, slots=True)
class SetDigest:
    """The digest of one set; equal sets have equal digests, others differ but for chance."""

    count: int = 0
    low: int = 0
    high: int = 0


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Digester:
    """Digests sets under one mesh key, so that nobody outside can choose hashes that cancel out."""

    def __init__(self, key: bytes) -> None:
        seed = blake2b(b"rumormill set digest", digest_size=16, key=key).digest()
        self._keys = (int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:], "little"))

    def sums(self, hashes: Hashes) -> tuple[int, int]:
        """The two sums over distinct `hashes`."""
        first, second = self._keys
        if len(hashes) < _SMALL:
            values = hashes.tolist()
            low = sum(_mix(value ^ first) for value in values) & _MASK
            return low, sum(_mix(value ^ second) for value in values) & _MASK
        low_array = _mix_array(hashes ^ np.uint64(first))
        high_array = _mix_array(hashes ^ np.uint64(second))
        return int(low_array.sum(dtype=np.uint64)), int(high_array.sum(dtype=np.uint64))

    def digest(self, hashes: Hashes) -> SetDigest:
        """The digest of a whole set of distinct `hashes`."""
        return self.changed(SetDigest(), hashes, hashes[:0])

    def changed(self, old: SetDigest, added: Hashes, removed: Hashes) -> SetDigest:
        """The digest after `added`, none of which was in the set, and `removed`, all of which were."""
        count, low, high = old.count, old.low, old.high
        if len(added):
            low_sum, high_sum = self.sums(added)
            count, low, high = count + len(added), low + low_sum, high + high_sum
        if len(removed):
            low_sum, high_sum = self.sums(removed)
            count, low, high = count - len(removed), low - low_sum, high - high_sum
        return SetDigest(count, low & _MASK, high & _MASK)

    def ranges(self, hashes: Hashes) -> npt.NDArray[np.uint64]:
        """Both sums for each of the 256 ranges by a hash's top byte, shape (256, 2)."""
        result = np.zeros((RANGES, 2), dtype=np.uint64)
        ranges = range_of(hashes)
        for column, key in enumerate(self._keys):
            np.add.at(result[:, column], ranges, _mix_array(hashes ^ np.uint64(key)))
        return result


def range_of(hashes: Hashes) -> npt.NDArray[np.intp]:
    """Which of the 256 ranges each hash belongs to."""
    return (hashes >> np.uint64(56)).astype(np.intp)


def in_ranges(hashes: Hashes, ranges: bytes) -> npt.NDArray[np.bool_]:
    """Which hashes belong to one of `ranges`, a byte each."""
    return np.isin(range_of(hashes), np.frombuffer(ranges, dtype=np.uint8))
