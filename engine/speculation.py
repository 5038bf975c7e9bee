"""Guessing the next tokens from what the sequence itself says: prompt lookup (arXiv 2304.04487).

A model often repeats its prompt or itself, so the tokens that once followed the last few are a good guess of
those that follow now. A step computes them all at once, keeps those that it would have picked one by one, and
so never changes an answer. Guesses are made only while enough of them come true to pay for their computation.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Final

MOST_GUESSES: Final = 4
HIGHEST_PRICE: Final = 0.35
"""Where a guess costs more of a next token than this, as in larger batches, there is too little to win."""

LONGEST_MATCH: Final = 3
SHORTEST_MATCH: Final = 2

_HOPE: Final = 0.7
"""The share of guesses expected to come true before any has been seen."""

_MEMORY: Final = 0.9
"""What the weight of one guess decays to with each later one."""

_RECOVERY: Final = 0.01
"""How much of the way back to hope a step without guesses brings: text changes, so a new try is due."""


class Speculator:
    """One sequence's guesses, and how many of them came true."""

    def __init__(self) -> None:
        self._read = 0
        self._after: dict[int, dict[tuple[int, ...], int]] = {
            length: {} for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1)
        }
        self._truth = _HOPE

    def guess(self, token_ids: Items[int], price: float, most: int) -> tuple[int, ...]:
        """What may follow `token_ids`, at most `most` tokens; none if they would not pay.

        `price`: the share of guesses that must come true to be worth the computation of all.
        """
        most = min(most, MOST_GUESSES) if price <= HIGHEST_PRICE else 0
        while most > 0 and self._truth**most < price:
            most -= 1
        if most <= 0:
            self._truth += (_HOPE - self._truth) * _RECOVERY
            return ()
        self._learn(token_ids)
        for length, after in self._after.items():
            start = after.get(tuple(token_ids[-length:]))
            if start is not None:
                return tuple(token_ids[start : start + most])
        return ()

    def judge(self, guesses: int, true: int) -> None:
        """Tells how many of the last guesses came true; those after the first that didn't were not tried."""
        for came_true in [1.0] * true + [0.0] * (true < guesses):
            self._truth = _MEMORY * self._truth + (1 - _MEMORY) * came_true

    def _learn(self, token_ids: Items[int]) -> None:
        """Notes where the latest continuation of every run of tokens begins; the last run has none yet."""
        for end in range(self._read, len(token_ids)):
            for length, after in self._after.items():
                if end >= length:
                    after[tuple(token_ids[end - length : end])] = end
        self._read = len(token_ids)
