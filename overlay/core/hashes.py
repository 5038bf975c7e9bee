"""Arrays of block hashes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from overlay.core.messages import Hashes


def to_array(hashes: Iterable[int]) -> Hashes:
    """Block hashes as a uint64 array."""
    return np.fromiter(hashes, dtype=np.uint64)


EMPTY: Hashes = to_array(())
EMPTY.setflags(write=False)
