"""How often prompts with a given prefix were asked for lately, by this node's own requests."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from overlay.core.types import BlockHash

MAX_BLOCKS = 65_536
"""About 128 prompts of 8,192 tokens; past it the half that is asked for least is forgotten."""

MAX_PROMPTS = 4_096
"""Prompts whose follow-ups are looked out for; the oldest are dropped first."""

CONTINUATION_WEIGHT = 0.02
"""Of the latest request in the share of requests that continue another: about the last fifty count."""

MOST_FOLLOW_UPS = 20.0
"""However long dialogues are, plans reach no further than this many turns."""

_LARGEST_SCALE = 1e100


class Demand:
    """Requests per block, each counting less with age: by 1/e in `horizon_s`.

    By how many came in the last horizon one guesses how many will in the next. Old counts are not
    touched to let them fade: new ones are added at a growing scale instead (forward decay, Cormode et
    al., ICDE 2009).
    """

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._counts: dict[BlockHash, float] = {}
        self._origin: float | None = None
        self._ends: dict[BlockHash, None] = {}
        self._prompts = 0
        self._continuing = 0.5

    @property
    def follow_ups(self) -> float:
        """How many prompts that continue it a prompt has, if dialogues end as often as they did lately."""
        return min(self._continuing / max(1.0 - self._continuing, 1e-9), MOST_FOLLOW_UPS)

    def asked(self, blocks: Sequence[BlockHash], now: float) -> None:
        """A prompt of these blocks was asked for."""
        if not blocks:
            return
        self._note_end(blocks)
        scale = self._scale(now)
        if scale > _LARGEST_SCALE:
            self._counts = {block: count / scale for block, count in self._counts.items()}
            self._origin, scale = now, 1.0
        counts = self._counts
        for block in blocks[:MAX_BLOCKS]:
            counts[block] = counts.get(block, 0.0) + scale
        if len(counts) > MAX_BLOCKS:
            kept = heapq.nlargest(MAX_BLOCKS // 2, counts.items(), key=lambda item: item[1])
            self._counts = dict(kept)

    def _note_end(self, blocks: Sequence[BlockHash]) -> None:
        """Sees whether the prompt goes on where an earlier one ended."""
        ended = [block for block in blocks if block in self._ends]
        self._prompts += 1
        weight = max(CONTINUATION_WEIGHT, 1.0 / (self._prompts + 1))
        self._continuing += weight * (bool(ended) - self._continuing)
        for block in ended:
            del self._ends[block]
        self._ends[blocks[-1]] = None
        if len(self._ends) > MAX_PROMPTS:
            del self._ends[next(iter(self._ends))]

    def of(self, block: BlockHash, now: float) -> float:
        """Requests whose prompts went through `block`, in about the last horizon."""
        return self._counts.get(block, 0.0) / self._scale(now)

    def _scale(self, now: float) -> float:
        if self._origin is None:
            self._origin = now
        return math.exp(min((now - self._origin) / self._horizon_s, 500.0))
