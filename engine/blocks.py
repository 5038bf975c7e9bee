"""The pool of KV blocks: which block ids are free."""

from __future__ import annotations


class BlockPool:
    """Hands out block ids 0..total-1, lowest first, so that early use touches little memory."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError("a pool needs at least one block")
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A free block's id; the caller owns it. Raises IndexError when none is left."""
        return self._free.pop()

    def give(self, block: int) -> None:
        """Returns a block that the caller owned."""
        self._free.append(block)

    def free_blocks(self) -> frozenset[int]:
        """The ids of all free blocks, for integrity checks."""
        return frozenset(self._free)
