"""One sequence's share of a step, as attention sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """`count` new tokens after `computed` ones, all of them held in `blocks`."""

    computed: int
    count: int
    blocks: Sequence[int]

    @property
    def length(self) -> int:
        """Tokens in the cache once this step's are written."""
        return self.computed + self.count
