"""Memory for packed weights, in pages as large as the system has."""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

CHUNK_BYTES: Final = 64 << 20
ALIGNMENT: Final = 64
"""A cache line."""


class Arena:
    """Hands out parts of large anonymous mappings; they live as long as any array in them.

    A step reads every weight once, from one end to the other: with 4 KiB pages, looking their addresses up
    costs several per cent of it.
    """

    def __init__(self) -> None:
        self._chunk: Bytes = np.empty(0, np.uint8)
        self._used = 0

    def take(self, size: int) -> Bytes:
        """`size` bytes, zero, aligned to cache lines."""
        if self._used + size > len(self._chunk):
            self._chunk = _mapping(max(size, CHUNK_BYTES))
            self._used = 0
        part = self._chunk[self._used : self._used + size]
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return part

    def keep(self, content: Bytes) -> Bytes:
        """A flat copy of an array."""
        part = self.take(content.nbytes)
        part[:] = content.reshape(-1).view(np.uint8)
        return part


def _mapping(size: int) -> Bytes:
    mapping = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)
