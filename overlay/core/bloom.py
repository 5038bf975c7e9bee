"""Bloom filters of block sets, for peers too far for exact replicas.

Sizes are powers of two and positions are taken from the hash itself (it is keyed and uniform already),
by double hashing (Kirsch and Mitzenmacher, "Less Hashing, Same Performance", 2006). Prefixes are
chained, so a match ends at the first block missed: at 6 bits per block it over-counts by well under a
tenth of a block on average.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from overlay.core.limits import MAX_FILTER_BYTES
from overlay.core.messages import Hashes

BITS_PER_BLOCK = 6
PROBES = 4
MIN_BITS = 256


def build(hashes: Hashes) -> bytes:
    """The filter of a set: at least six bits a block, up to the limit on filters."""
    bits = MIN_BITS
    while bits < BITS_PER_BLOCK * len(hashes) and bits < MAX_FILTER_BYTES * 8:
        bits *= 2
    flags = np.zeros(bits, dtype=np.uint8)
    flags[positions(hashes, bits, PROBES)] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def positions(hashes: Hashes, bits: int, probes: int) -> npt.NDArray[np.uint64]:
    """Which bits each hash sets, shape (hashes, probes)."""
    steps = np.arange(probes, dtype=np.uint64)
    odd = (hashes >> np.uint64(32)) | np.uint64(1)
    return (hashes[:, None] + odd[:, None] * steps) & np.uint64(bits - 1)


def is_sound(bits: bytes, probes: int) -> bool:
    """Whether a filter that came in can be looked up."""
    size = len(bits)
    return MIN_BITS // 8 <= size <= MAX_FILTER_BYTES and size & (size - 1) == 0 and 1 <= probes <= 16


class FilterLookup:
    """One prompt's blocks against many filters."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._positions: dict[tuple[int, int], tuple[npt.NDArray[np.intp], npt.NDArray[np.uint8]]] = {}

    def depth(self, bits: npt.NDArray[np.uint8], probes: int) -> int:
        """How many leading blocks the filter seems to hold."""
        key = (len(bits), probes)
        known = self._positions.get(key)
        if known is None:
            where = positions(self._hashes, len(bits) * 8, probes)
            masks = np.left_shift(1, where & np.uint64(7), dtype=np.uint64).astype(np.uint8)
            self._positions[key] = known = ((where >> np.uint64(3)).astype(np.intp), masks)
        places, masks = known
        if not len(places) or not (bits[places[0]] & masks[0]).all():
            return 0
        missing = ((bits[places] & masks) == 0).any(axis=1)
        first = int(missing.argmax())
        return first if missing[first] else len(missing)
